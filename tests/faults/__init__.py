"""Tests of bad input and faults against a running infergate. Each file has one topic."""
