"""Servers that were not written for infergate, to test it against."""
