"""``infergate probe``: detects the protocols and models of servers, and writes a configuration for
these servers.

``prober`` is the entry point: it tries the protocols at each address (``targets``), recognizes
servers by their responses (``identification``), and describes their models (``findings``).
``report`` prints the result, with a request for each model (``example_requests``). ``routes_file``
writes a configuration. ``pairing`` matches the models and tensors of an old server with the models
and tensors of a new server."""
