"""gRPC over the HTTP/2 engine: the server and the client.

``headers``, ``metadata`` and ``framing`` are the wire format (pure); ``connection`` joins the
HTTP/2 engine to an asyncio transport. Server: ``server``, ``server_call``, ``server_unary_call``,
``server_stream_call``.
Client: ``client``, ``client_connection``, ``client_calls``. ``multiplexing`` serves several
requests of one stream concurrently, and ``drain`` ends streams when the server stops.
"""
