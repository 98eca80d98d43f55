"""Scripts that run in the environment of NVIDIA's legacy client."""
