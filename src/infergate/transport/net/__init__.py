"""Building blocks that know sockets and clocks but no protocol.

``bind`` opens listening sockets (``unix_socket`` claims a socket file), ``receive_watermark`` sets
SO_RCVLOWAT, ``timer`` runs the time limits of a connection on one loop timer, ``buffer_pool``
reuses the memory of long bodies, and ``deferred_inflation`` decompresses long bodies one piece at a
time. The modules are independent of each other, except that ``bind`` uses ``unix_socket``.
"""
