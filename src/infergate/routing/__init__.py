"""Chooses routes and endpoints. The package has no I/O; time is an argument.

Read in this order: ``table`` (finds the route of a model name), ``split`` (chooses the target of a
request), ``cluster`` (chooses an endpoint of a backend) and the modules that a cluster uses:
``balance``, ``affinity``, ``health`` and ``outliers``. ``concurrency`` limits requests, and
``budget`` limits retries. ``backoff`` and ``latency`` determine when an attempt starts."""
