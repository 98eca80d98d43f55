"""A listener for size-prefixed frames, on TCP or on a unix socket."""

from __future__ import annotations

from infergate.transport.framed.server_connection import FrameConnection
from infergate.transport.server.listener import HttpAppListener


class FrameServer(HttpAppListener):
    """A ``Server`` for size-prefixed frames."""

    def _create_connection(self) -> FrameConnection:
        return FrameConnection(self)
