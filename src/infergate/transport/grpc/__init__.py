"""gRPC over the HTTP/2 engine: the server and the client.

``headers``, ``metadata`` and ``framing`` read and write the wire format, without I/O.
``connection`` joins the HTTP/2 engine to an asyncio transport. The server consists of ``server``,
``server_call``, ``server_unary_call`` and ``server_stream_call``. The client consists of
``client``, ``client_connection`` and ``client_calls``. ``rpc_app`` calls the application,
``multiplexing`` serves several requests of one stream concurrently, and ``drain`` ends streams when
the server stops.
"""
