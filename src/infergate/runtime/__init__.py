"""Start, signals, drain, the admin page."""
