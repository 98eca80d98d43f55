"""Building blocks that use sockets and clocks but no protocol.

``bind`` opens listening sockets (``unix_socket`` claims a socket file), ``receive_watermark`` sets
SO_RCVLOWAT, ``timer`` runs the time limits of a connection, ``buffer_pool`` reuses the memory of
long bodies, and ``deferred_inflation`` decompresses long messages one piece at a time.
"""
