"""End-to-end tests: infergate as a process, with real clients and real servers."""
