"""Outgoing frames of a connection, within the peer's flow-control windows.

Frames gather in `parts` until the user of the connection takes them, all at once. DATA beyond the
windows waits on its stream as memory views, which are cut into frames when they may be sent, and
never copied. Streams with queued data are served in the order in which they queued it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.transport.h2.fields import NO_TABLE
from infergate.transport.h2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    LEAST_FRAME,
    Code,
    ConnectionFault,
)
from infergate.transport.h2.stream import Stream

_LONGEST: Final = 256 * KIB
"""The longest DATA frame sent, even to a peer that accepts longer ones: other streams wait behind
it."""


class Outbox:
    """The pending output of a connection. `window` is the connection's send window,
    `initial_window` that of a new stream, `max_frame_size` the longest payload that the peer
    accepts."""

    __slots__ = (
        "_has_spoken",
        "_waiting",
        "frame_size",
        "initial",
        "parts",
        "sent_frames",
        "window",
    )

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.window = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        self.frame_size = LEAST_FRAME
        self.sent_frames = 0
        """Number of HEADERS and DATA frames sent."""
        self._has_spoken = False
        self._waiting: dict[Stream, None] = {}

    def headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """Send a header block, in as many frames as it needs."""
        self.sent_frames += 1
        if not self._has_spoken:
            self._has_spoken = True
            block = NO_TABLE + block
        if end:
            stream.local_open = False
        flags = END_STREAM if end else 0
        max_size = self.frame_size
        if len(block) <= max_size:
            head = HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream.id)
            self.parts.append(head + block)
            return
        kind = HEADERS
        for start in range(0, len(block), max_size):
            piece = block[start : start + max_size]
            end_headers = END_HEADERS if start + max_size >= len(block) else 0
            self.parts.append(
                HEAD.pack(len(piece) << 8 | kind, flags | end_headers, stream.id) + piece
            )
            kind, flags = CONTINUATION, 0

    def all(self, stream: Stream, block: bytes, parts: Sequence[Buffer], tail: bytes) -> bool:
        """Send a header block, the body `parts` and the trailers `trailers`: all of a unary
        message. Return False if part of it has to wait."""
        size = sum(map(len, parts))
        if (
            len(block) + size + len(tail) > self.frame_size
            or size > stream.send_window
            or size > self.window
            or not self._has_spoken
        ):
            self.headers(stream, block, end=False)
            return self.data(stream, parts, tail)
        stream_id = stream.id
        stream.send_window -= size
        self.window -= size
        self.sent_frames += 2
        stream.local_open = False
        head = HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, stream_id) + block
        if tail:
            end = HEAD.pack(len(tail) << 8 | HEADERS, END_STREAM | END_HEADERS, stream_id) + tail
            self.sent_frames += 1
            self.parts += (head + HEAD.pack(size << 8 | DATA, 0, stream_id), *parts, end)
        else:
            self.parts += (head + HEAD.pack(size << 8 | DATA, END_STREAM, stream_id), *parts)
        return True

    def data(self, stream: Stream, parts: Sequence[Buffer], tail: bytes | None) -> bool:
        """Send the body `parts`, then `trailers` (see :class:`Stream`). Return False if part of it
        has to wait."""
        if stream.queue is None:
            size = sum(map(len, parts))
            if size <= stream.send_window and size <= self.window and size <= self.frame_size:
                self._at_once(stream, parts, size, tail)
                return True
            stream.queue = deque()
        stream.queue.extend(part for part in parts if len(part))
        stream.tail = tail
        if self._send(stream):
            return True
        self._waiting[stream] = None
        return False

    def _at_once(
        self, stream: Stream, parts: Sequence[Buffer], size: int, tail: bytes | None
    ) -> None:
        stream.send_window -= size
        self.window -= size
        self.sent_frames += 1
        if size or tail == b"":
            self.parts.append(
                HEAD.pack(size << 8 | DATA, END_STREAM if tail == b"" else 0, stream.id)
            )
            self.parts.extend(parts)
        if tail is not None:
            stream.local_open = False
            if tail:
                self.headers(stream, tail, end=True)

    def _send(self, stream: Stream) -> bool:
        """Send as much of the queue of `stream` as the windows allow; return whether that was
        all."""
        queue = stream.queue
        assert queue is not None
        max_size = min(self.frame_size, _LONGEST)
        while queue:
            allowed = min(stream.send_window, self.window)
            if allowed <= 0:
                return False
            if count := min(allowed, len(queue[0]) - 1) // max_size:
                self._send_run(stream, queue, max_size, count)
                continue
            allowed = min(allowed, max_size)
            # Several parts share a frame: a message is a few bytes followed by a tensor.
            payload, size = [], 0
            while queue and size < allowed:
                part = queue.popleft()
                if len(part) > allowed - size:
                    view = memoryview(part)
                    queue.appendleft(view[allowed - size :])
                    part = view[: allowed - size]
                payload.append(part)
                size += len(part)
            stream.send_window -= size
            self.window -= size
            self.sent_frames += 1
            end = END_STREAM if stream.tail == b"" and not queue else 0
            self.parts.append(HEAD.pack(size << 8 | DATA, end, stream.id))
            self.parts.extend(payload)
        stream.queue = None
        if stream.tail is not None:
            stream.local_open = False
            if stream.tail:
                self.headers(stream, stream.tail, end=True)
        return True

    def _send_run(self, stream: Stream, queue: deque[Buffer], most: int, count: int) -> None:
        """Send `count` frames of `frame_size` bytes each, all from the first part, which is longer
        than that."""
        head, part = HEAD.pack(most << 8 | DATA, 0, stream.id), memoryview(queue.popleft())
        size = count * most
        queue.appendleft(part[size:])
        stream.send_window -= size
        self.window -= size
        self.sent_frames += count
        for start in range(0, size, most):
            self.parts += (head, part[start : start + most])

    def forget(self, stream: Stream) -> None:
        """Drop what is queued on `stream` and send nothing more on it."""
        stream.local_open = False
        stream.queue = None
        self._waiting.pop(stream, None)

    # ---- the peer's windows

    def widen(self, increment: int) -> list[Stream]:
        """Enlarge the connection's window; return the streams whose queued data has now been sent.
        Raises Http2ConnectionError."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection window overflows")
        done = []
        for stream in tuple(self._waiting):
            if self.window <= 0:
                break
            if self._go_on(stream):
                done.append(stream)
        return done

    def widen_stream(self, stream: Stream, increment: int) -> bool | None:
        """Enlarge the stream's window. Return whether its queued data has now been sent, or None if
        the window would overflow."""
        stream.send_window += increment
        if stream.send_window > LARGEST_WINDOW:
            return None
        return stream in self._waiting and self._go_on(stream)

    def _go_on(self, stream: Stream) -> bool:
        if self._send(stream):
            del self._waiting[stream]
            return True
        return False
