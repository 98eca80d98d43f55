"""Scripts that run in the environments of TensorFlow Serving's clients."""
