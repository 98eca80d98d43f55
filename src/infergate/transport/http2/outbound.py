"""Outgoing frames of a connection, within the peer's flow-control windows. Data beyond the windows
waits in the queue of its stream. When the windows allow, the queue is split into frames without
copying. Streams are served in the order in which their queues began."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.transport.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    MIN_FRAME_SIZE,
)
from infergate.transport.http2.header_blocks import TABLE_SIZE_ZERO
from infergate.transport.http2.stream import Stream

_MAX_DATA_FRAME: Final = 256 * KIB
"""Maximum payload of DATA frames from a queue, because other streams wait behind a frame."""


class OutboundFrames:
    """The pending output of a connection. `window` is the connection's send window,
    `initial_window` is the send window of a new stream, and `max_frame_size` is the longest payload
    that the peer accepts."""

    def __init__(self) -> None:
        self.output: list[Buffer] = []
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_size = MIN_FRAME_SIZE
        self.sent_frames = 0  # number of HEADERS and DATA frames sent
        self._has_sent_headers = False
        self.waiting: dict[Stream, None] = {}  # streams with queued data

    def send_headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """Send a header block, in as many frames as it needs."""
        self.sent_frames += 1
        if not self._has_sent_headers:
            self._has_sent_headers = True
            block = TABLE_SIZE_ZERO + block
        if end:
            stream.local_open = False
        flags = END_STREAM if end else 0
        max_size = self.max_frame_size
        if len(block) <= max_size:
            head = FRAME_HEADER.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream.id)
            self.output.append(head + block)
            return
        kind = HEADERS
        for start in range(0, len(block), max_size):
            piece = block[start : start + max_size]
            end_headers = END_HEADERS if start + max_size >= len(block) else 0
            self.output.append(
                FRAME_HEADER.pack(len(piece) << 8 | kind, flags | end_headers, stream.id) + piece
            )
            kind, flags = CONTINUATION, 0

    def send_message(
        self, stream: Stream, block: bytes, parts: Sequence[Buffer], trailers: bytes
    ) -> bool:
        """Send a complete unary message: header block, body and trailers. Return False if part of
        the message waits."""
        size, block_size, trailers_size = total_size(parts), len(block), len(trailers)
        if (
            block_size + size + trailers_size > self.max_frame_size
            or size > stream.send_window
            or size > self.window
            or not self._has_sent_headers
        ):
            self.send_headers(stream, block, end=False)
            return self.send_data(stream, parts, trailers)
        stream_id = stream.id
        stream.send_window -= size
        self.window -= size
        self.sent_frames += 2
        stream.local_open = False
        head = FRAME_HEADER.pack(block_size << 8 | HEADERS, END_HEADERS, stream_id) + block
        if trailers_size:
            flags = END_STREAM | END_HEADERS
            end = FRAME_HEADER.pack(trailers_size << 8 | HEADERS, flags, stream_id) + trailers
            self.sent_frames += 1
            self.output += (head + FRAME_HEADER.pack(size << 8 | DATA, 0, stream_id), *parts, end)
        else:
            data_head = FRAME_HEADER.pack(size << 8 | DATA, END_STREAM, stream_id)
            self.output += (head + data_head, *parts)
        return True

    def send_data(self, stream: Stream, parts: Sequence[Buffer], trailers: bytes | None) -> bool:
        """Send the body `parts`, then `trailers` (see `Stream.trailers`). Return False if part of
        the body waits."""
        if stream.send_queue is None:
            size = total_size(parts)
            if size <= stream.send_window and size <= self.window and size <= self.max_frame_size:
                self._send_now(stream, parts, size, trailers)
                return True
            stream.send_queue = deque()
        stream.send_queue.extend(part for part in parts if len(part))
        stream.trailers = trailers
        if self._send(stream):
            return True
        self.waiting[stream] = None
        return False

    def _send_now(
        self, stream: Stream, parts: Sequence[Buffer], size: int, trailers: bytes | None
    ) -> None:
        stream.send_window -= size
        self.window -= size
        self.sent_frames += 1
        if size or trailers == b"":
            self.output.append(
                FRAME_HEADER.pack(size << 8 | DATA, END_STREAM if trailers == b"" else 0, stream.id)
            )
            self.output.extend(parts)
        if trailers is not None:
            stream.local_open = False
            if trailers:
                self.send_headers(stream, trailers, end=True)

    def _send(self, stream: Stream) -> bool:
        """Send the queue of `stream` as far as the windows allow. Return whether it is empty."""
        queue = stream.send_queue
        assert queue is not None
        max_size = min(self.max_frame_size, _MAX_DATA_FRAME)
        while queue:
            allowed = min(stream.send_window, self.window)
            if allowed <= 0:
                return False
            if count := min(allowed, len(queue[0]) - 1) // max_size:
                self._send_run(stream, queue, max_size, count)
                continue
            allowed = min(allowed, max_size)
            # Several parts share a frame, because a message consists of a few bytes followed by a
            # tensor.
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
            end = END_STREAM if stream.trailers == b"" and not queue else 0
            self.output.append(FRAME_HEADER.pack(size << 8 | DATA, end, stream.id))
            self.output.extend(payload)
        stream.send_queue = None
        if stream.trailers is not None:
            stream.local_open = False
            if stream.trailers:
                self.send_headers(stream, stream.trailers, end=True)
        return True

    def _send_run(self, stream: Stream, queue: deque[Buffer], frame_size: int, count: int) -> None:
        """Send `count` frames of `frame_size` bytes, all from the first part of `queue`, which is
        longer than these frames together."""
        head = FRAME_HEADER.pack(frame_size << 8 | DATA, 0, stream.id)
        part = memoryview(queue.popleft())
        size = count * frame_size
        queue.appendleft(part[size:])
        stream.send_window -= size
        self.window -= size
        self.sent_frames += count
        for start in range(0, size, frame_size):
            self.output += (head, part[start : start + frame_size])

    def discard(self, stream: Stream) -> None:
        """Drop the queue of `stream`, and send nothing more on the stream."""
        stream.local_open = False
        stream.send_queue = None
        self.waiting.pop(stream, None)

    # ---- the peer's windows

    def resume_waiting(self) -> list[Stream]:
        """Send queued data, because the connection's window has grown. Return the streams whose
        queues are empty."""
        done: list[Stream] = []
        for stream in tuple(self.waiting):
            if self.window <= 0:
                break
            if self.resume(stream):
                done.append(stream)
        return done

    def resume(self, stream: Stream) -> bool:
        """Send the queue of `stream` as far as the windows allow. Return whether the queue is
        empty."""
        if self._send(stream):
            del self.waiting[stream]
            return True
        return False
