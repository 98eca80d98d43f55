"""The alternative engine ``compat``, which uses aiohttp's parser for HTTP and grpcio for gRPC.

The entry points are ``aiohttp_server``, ``aiohttp_client``, ``grpcio_server`` and
``grpcio_client``. No other package serves or sends requests with aiohttp or grpcio."""
