"""Metrics, the access log, and the form of other lines."""
