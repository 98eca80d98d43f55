"""Size-prefixed frames (a uint32 length, then the message): GraphPipe without HTTP.

``frame_reader`` splits received bytes into frames without I/O, ``server`` serves frames, and
``client`` sends frames. To the application, a frame is the body of an HTTP POST to ``/``."""
