"""Real servers and clients of other projects, and the tests that need them."""
