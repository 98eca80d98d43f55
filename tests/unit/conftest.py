"""Fixtures that any unit test may request."""

from virtual_time import virtual_time

__all__ = ["virtual_time"]
