"""The transports: bytes and sockets, no tensors.

``base`` is the contract that the other packages of infergate use; engines are chosen in
``runtime.engines``. Arrows point from later to earlier: ``net`` and ``tls`` (building blocks),
``server`` and ``client`` (shared by all listeners and all upstreams), ``http1`` and ``grpc`` (on
the sockets-free engine ``http2``), ``framed`` (size-prefixed frames), ``compat`` (aiohttp and
grpcio). Start with ``base``, then ``server.listener`` and ``http1.server_connection``, or
``client.pool``.
"""
