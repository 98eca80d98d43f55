"""Decisions about routes and endpoints. The package uses no sockets, and time is an argument.

Read ``table`` (the route of a model name), ``split`` (the target of a request), ``cluster`` (the
endpoint of a backend) and the modules that a cluster uses: ``balance``, ``affinity``, ``health``,
``outliers``. ``concurrency`` and ``budget`` limit attempts; ``backoff`` and ``latency`` determine
their timing."""
