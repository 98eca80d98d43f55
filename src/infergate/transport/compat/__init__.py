"""The alternative engine ``compat``: HTTP on aiohttp's parser and gRPC on grpcio.

Entry points: ``aiohttp_server``, ``aiohttp_client``, ``grpcio_server``, ``grpcio_client``. No other
package uses the two libraries to serve or send requests.
"""
