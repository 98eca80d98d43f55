"""The alternative engine ``compat``: HTTP on aiohttp's parser and gRPC on grpcio.

Selected by configuration for deployments that prefer those libraries; no other package imports them
for serving or calling. ``aiohttp_server``/``aiohttp_client`` and ``grpcio_server``/
``grpcio_client`` are the entry points; the other modules support one of these four.
"""
