"""Pure decisions about routes and endpoints: no sockets, and time is an argument.

Read ``table`` (which route a model name takes), ``split`` (which target of a route), ``cluster``
(which endpoint of a backend) and what a cluster uses: ``balance``, ``affinity``, ``health``,
``outliers``. ``concurrency``, ``budget``, ``backoff`` and ``latency`` limit and time the attempts
of a request.
"""
