"""The transports, which handle bytes and sockets but not tensors.

``base`` is the interface to the rest of infergate. ``assembly.engines`` chooses engines. Each of
the following packages may import the packages before it: ``net`` and ``tls`` (building blocks),
``server`` and ``client`` (shared by all listeners and all upstreams), ``http1``, ``http2`` (without
sockets), ``grpc``, ``framed`` (size-prefixed frames), ``compat`` (aiohttp and grpcio). Start with
``base``, then ``server.listener`` and ``http1.server_connection``, or ``client.pool``."""
