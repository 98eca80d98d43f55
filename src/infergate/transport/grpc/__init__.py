"""gRPC over the HTTP/2 engine: the server and the client.

``headers``, ``metadata`` and ``framing`` are the wire format (pure). ``connection`` joins the
HTTP/2 engine to an asyncio transport for both ends. Server: ``server``, then ``server_call`` and
``server_call_kinds``. Client: ``client``, then ``client_connection`` and ``client_calls``.
``multiplexing`` serves several requests of one stream at a time, and ``drain`` ends streams when
the server stops.
"""
