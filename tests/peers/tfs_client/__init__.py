"""Scripts that run in the environments of GraphPipe's clients."""
