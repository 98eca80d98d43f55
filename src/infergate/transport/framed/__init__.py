"""Size-prefixed frames (a uint32 length, then the message): GraphPipe without HTTP.

``frame_reader`` cuts frames out of received bytes (pure), ``server`` and ``server_connection``
serve them, and ``client`` sends them. A frame is the body of an HTTP POST to ``/``, so the
application does not notice the difference.
"""
