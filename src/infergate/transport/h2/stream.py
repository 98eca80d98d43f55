"""One HTTP/2 stream, as both sides of a connection see it."""

from __future__ import annotations

from collections import deque
from typing import Any

from infergate.core.tensor import Buffer


class Stream:
    """``owner`` belongs to whoever holds the connection; all else to the connection.

    Windows may be negative: a peer may make them smaller (RFC 9113, 6.9.2).
    """

    __slots__ = (
        "due",
        "id",
        "invited",
        "local_open",
        "owner",
        "queue",
        "receive_window",
        "received_headers",
        "remote_open",
        "send_window",
        "tail",
        "unreleased",
    )

    def __init__(self, number: int, send_window: int, receive_window: int) -> None:
        self.id = number
        self.owner: Any = None
        self.remote_open = True
        self.local_open = True
        self.received_headers = False
        self.send_window = send_window
        self.receive_window = receive_window
        """What the peer may still send."""
        self.invited = 0
        """What it may send, or has sent, beyond the window that a stream begins with."""
        self.unreleased = 0
        """What it has sent and was released, but has not been told of yet."""
        self.queue: deque[Buffer] | None = None
        """What waits for the peer's windows."""
        self.tail: bytes | None = None
        """The trailers that come after it; empty: the last DATA ends the stream; None: more may
        be sent."""
        self.due: int | None = None
        """Bytes of the body to come, where its length was announced."""
