"""What goes out on a connection: frames within the peer's windows.

*Strategy.* Frames gather in ``parts`` until the owner takes them, all at once. DATA beyond the
windows waits on its stream as views, is cut when it may go, and is never copied.

*Rule.* Streams that wait go on in the order in which they came to wait.
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
"""Bytes of a frame of ours, even where the peer takes longer ones: others wait behind it."""


class Outbox:
    """``window`` is the connection's, ``initial`` that of a new stream, ``frame_size`` the longest
    payload the peer takes."""

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
        """Frames of headers and DATA so far."""
        self._has_spoken = False
        self._waiting: dict[Stream, None] = {}

    def headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """A header block, in as many frames as it needs."""
        self.sent_frames += 1
        if not self._has_spoken:
            self._has_spoken = True
            block = NO_TABLE + block
        if end:
            stream.local_open = False
        flags = END_STREAM if end else 0
        most = self.frame_size
        if len(block) <= most:
            head = HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream.id)
            self.parts.append(head + block)
            return
        kind = HEADERS
        for at in range(0, len(block), most):
            piece = block[at : at + most]
            last = END_HEADERS if at + most >= len(block) else 0
            self.parts.append(HEAD.pack(len(piece) << 8 | kind, flags | last, stream.id) + piece)
            kind, flags = CONTINUATION, 0

    def all(self, stream: Stream, block: bytes, parts: Sequence[Buffer], tail: bytes) -> bool:
        """A header block, ``parts`` of a body and its ``tail``, which is all of a call that is not
        a stream. False where some has to wait."""
        size = sum(map(len, parts))
        if (
            len(block) + size + len(tail) > self.frame_size
            or size > stream.send_window
            or size > self.window
            or not self._has_spoken
        ):
            self.headers(stream, block, end=False)
            return self.data(stream, parts, tail)
        number = stream.id
        stream.send_window -= size
        self.window -= size
        self.sent_frames += 2
        stream.local_open = False
        head = HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, number) + block
        if tail:
            end = HEAD.pack(len(tail) << 8 | HEADERS, END_STREAM | END_HEADERS, number) + tail
            self.sent_frames += 1
            self.parts += (head + HEAD.pack(size << 8 | DATA, 0, number), *parts, end)
        else:
            self.parts += (head + HEAD.pack(size << 8 | DATA, END_STREAM, number), *parts)
        return True

    def data(self, stream: Stream, parts: Sequence[Buffer], tail: bytes | None) -> bool:
        """``parts`` of a body, then ``tail``: see :class:`Stream`. False where some has to wait."""
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
        """Send of what waits on ``stream`` as much as may go; whether that is all."""
        queue = stream.queue
        assert queue is not None
        most = min(self.frame_size, _LONGEST)
        while queue:
            room = min(stream.send_window, self.window)
            if room <= 0:
                return False
            if count := min(room, len(queue[0]) - 1) // most:
                self._send_run(stream, queue, most, count)
                continue
            room = min(room, most)
            # A frame is filled from several parts: a message is a few bytes and then a tensor.
            taken, size = [], 0
            while queue and size < room:
                part = queue.popleft()
                if len(part) > room - size:
                    view = memoryview(part)
                    queue.appendleft(view[room - size :])
                    part = view[: room - size]
                taken.append(part)
                size += len(part)
            stream.send_window -= size
            self.window -= size
            self.sent_frames += 1
            end = END_STREAM if stream.tail == b"" and not queue else 0
            self.parts.append(HEAD.pack(size << 8 | DATA, end, stream.id))
            self.parts.extend(taken)
        stream.queue = None
        if stream.tail is not None:
            stream.local_open = False
            if stream.tail:
                self.headers(stream, stream.tail, end=True)
        return True

    def _send_run(self, stream: Stream, queue: deque[Buffer], most: int, count: int) -> None:
        """``count`` frames of ``most`` bytes, all of the first part, of which something is left."""
        head, part = HEAD.pack(most << 8 | DATA, 0, stream.id), memoryview(queue.popleft())
        size = count * most
        queue.appendleft(part[size:])
        stream.send_window -= size
        self.window -= size
        self.sent_frames += count
        for at in range(0, size, most):
            self.parts += (head, part[at : at + most])

    def forget(self, stream: Stream) -> None:
        """Nothing more is sent on ``stream``."""
        stream.local_open = False
        stream.queue = None
        self._waiting.pop(stream, None)

    # ---- the peer's windows

    def widen(self, increment: int) -> list[Stream]:
        """The connection's window grows; which streams have nothing more to send thereby. Raises
        ConnectionFault."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window overflows")
        done = []
        for stream in tuple(self._waiting):
            if self.window <= 0:
                break
            if self._go_on(stream):
                done.append(stream)
        return done

    def widen_stream(self, stream: Stream, increment: int) -> bool | None:
        """The stream's window grows; whether it has nothing more to send thereby. None: it cannot
        grow so much."""
        stream.send_window += increment
        if stream.send_window > LARGEST_WINDOW:
            return None
        return stream in self._waiting and self._go_on(stream)

    def _go_on(self, stream: Stream) -> bool:
        if self._send(stream):
            del self._waiting[stream]
            return True
        return False
