"""What runs inside the environment of NVIDIA's legacy client."""
