"""infergate as people run it: its own process, real clients, real servers."""
