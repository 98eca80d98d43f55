"""HTTP/1.1: an engine without sockets, and the server and the client built on it.

Engine: ``message_head`` (rules and serialization of heads), ``request_head``, ``chunked``,
``request_reader``, ``response_head``, ``response_reader``.

Server: start with ``server_connection``, the state machine of every HTTP-like listener;
``connection`` writes responses, ``error_responses`` builds the responses to rejected requests, and
``server`` reads requests with the engine.

Client: start with ``upstream``; ``exchange`` runs one request on a pooled connection,
``event_stream`` reads server-sent events, ``line_stream`` reads lines, and ``client`` reads
responses with the engine.
"""
