"""TLS settings and certificates for both ends of a connection. This package opens no sockets.

``server_context`` and ``client_context`` build the ``ssl.SSLContext`` of the next connection and
reload changed files (``file_watch``, ``certificates``). ``san_match`` matches the names of client
certificates, and ``client_hello`` reads the ALPN offer of a ClientHello before OpenSSL does.
``server.tls_transport`` and ``client.connect`` open the connections.
"""
