"""Every protocol to every protocol, tried for real in one process: what arrives as it was, what is
converted, what is refused.

*Strategy.* A :class:`~infergate.matrix.site.Site` runs one infergate in front of another; between
all of them are sockets. The one behind answers, over every protocol, from models that witness what
reaches them. A client of each protocol asks a fixed list of ``cases`` through the one in front over
each backend, and ``findings`` tell what the witness saw and the client got from what was meant.

*Rule 1.* What one column's backend is told is compared with what the embedded backend was told by
the same client: so what a client's protocol cannot say is told apart from what a backend's lacks.
*Rule 2.* A difference that no finding explains is wrong, and is told as that.
"""
