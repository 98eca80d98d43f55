"""Code that the listeners of all protocols share.

Start with ``listener``, which binds, tracks connections and drains them. ``connection`` defines the
interfaces between a listener and its connections, ``connection_gate`` limits and counts
connections, ``admission`` limits requests and memory, ``incoming_request`` holds one request,
``accept`` shares sockets between worker processes, and ``tls_transport`` adds TLS to a connection.
"""
