"""The state of one HTTP/2 stream, at either end of a connection."""

from __future__ import annotations

from collections import deque
from typing import Any

from infergate.core.tensor import Buffer


class Stream:
    """One HTTP/2 stream. The code that uses the connection sets `owner`. The send window may become
    negative, because the peer may shrink it (RFC 9113, 6.9.2)."""

    __slots__ = (
        "extra_granted",
        "id",
        "local_open",
        "owner",
        "receive_window",
        "received_headers",
        "remaining_length",
        "remote_open",
        "send_queue",
        "send_window",
        "trailers",
        "unreleased",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.owner: Any = None
        self.remote_open = True
        self.local_open = True
        self.received_headers = False
        self.send_window = send_window
        self.receive_window = receive_window  # bytes that the peer may still send
        self.extra_granted = 0
        """Number of bytes that `expect` has granted in advance, and that `release` must not grant
        again."""
        self.unreleased = 0
        """Released bytes that no WINDOW_UPDATE has returned to the peer yet."""
        self.send_queue: deque[Buffer] | None = None  # data that waits for flow-control windows
        self.trailers: bytes | None = None
        """The trailers that follow `send_queue`. If they are empty, the last DATA frame ends the
        stream. If they are None, more data may follow."""
        self.remaining_length: int | None = None
        """Number of body bytes that have not arrived, or None without a content-length."""
