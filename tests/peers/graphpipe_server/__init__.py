"""The script that runs in graphpipe-py's environment, on its server library."""
