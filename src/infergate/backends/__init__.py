"""Where operations go: remote servers, and models inside this process."""
