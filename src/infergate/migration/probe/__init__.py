"""``infergate probe``: finds out what servers speak and serve, and writes a configuration for them.

``prober`` is the entry point: it tries the protocols at each address (``targets``), recognizes
servers by their responses (``identification``), and describes their models (``findings``).
``report`` prints the result, with a request for each model (``example_requests``).
``routes_file`` writes a configuration; ``pairing`` pairs models and tensors of an old and a new
server for it."""
