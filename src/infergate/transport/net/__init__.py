"""Building blocks with sockets and clocks but without any protocol.

``bind`` opens listening sockets (``unix_socket`` claims a socket file), ``receive_watermark`` sets
SO_RCVLOWAT, ``timer`` runs the time limits of a connection on one loop timer, ``buffer_pool``
reuses the memory of long bodies, and ``deferred_inflation`` decompresses long bodies one piece at a
time.
"""
