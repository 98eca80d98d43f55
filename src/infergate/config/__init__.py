"""routes.yaml: one typed schema, every mistake with its line."""
