"""Bad input and faults against a running infergate, one topic a file."""
