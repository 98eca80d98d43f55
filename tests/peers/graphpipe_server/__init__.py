"""What runs inside the environment of graphpipe-py, on its server library."""
