"""What runs inside the environments of GraphPipe's clients."""
