"""Pure decisions: which route, which endpoint."""
