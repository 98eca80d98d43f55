"""HTTP/1.1: an engine without sockets, and the server and the client built on it.

Engine (bytes in, messages out; no sockets, no clock): ``message_head`` (rules and serialization
of heads), ``request_head``, ``chunked``, ``request_reader``, ``response_head``,
``response_reader``.

Server: start with ``server_connection``, the state machine that every HTTP-like listener
shares; ``response_writer`` and ``connection`` write responses, ``server`` reads requests with
the engine.

Client: start with ``upstream``; ``exchange`` runs one request on a pooled connection,
``event_stream`` reads a response of server-sent events, ``client`` reads plain responses
itself.
"""
