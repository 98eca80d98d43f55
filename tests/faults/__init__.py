"""Bad input and faults against a running infergate, one topic per file."""
