"""The transports: bytes and sockets, no tensors.

``base`` is the contract with the rest of infergate; ``runtime.engines`` chooses engines. Each of
the following packages may import the packages before it: ``net`` and ``tls`` (building blocks),
``server`` and ``client`` (shared by all listeners and all upstreams), ``http1``, ``http2`` (engine
without sockets), ``grpc``, ``framed`` (size-prefixed frames), ``compat`` (aiohttp and grpcio).
Start with ``base``, then ``server.listener`` and ``http1.server_connection``, or ``client.pool``.
"""
