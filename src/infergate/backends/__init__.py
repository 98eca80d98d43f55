"""Backends: the destinations of operations, either remote servers or models in this process.

The entry point is the interface ``Backend`` (``base``). For a remote backend, read ``remote``
(``RemoteBackend``, which implements the interface with a codec and an upstream), ``request_sender``
(one message to an endpoint and back), ``attempts`` and ``hedging`` (retries), ``request_queue``
(concurrency limit), ``endpoints`` and ``endpoint_monitor`` (load balancing, DNS, health checks),
``metadata_cache`` and ``profile_detection`` (facts about the server, cached by ``single_flight``).
``in_process`` is the base class of the backends that serve the embedded models (``builtin/``) and
Python models (``python_model``).
"""
