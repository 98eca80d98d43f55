"""The asyncio protocol of an HTTP/2 connection, shared by server and client. The engine's events
call methods of the subclass. Most output is written once per event loop iteration
(``flush_soon``).

The event loop delivers each read as a new bytes object, which costs a copy. While a peer sends long
messages, the bytes are therefore received into a buffer that all connections of a thread share. The
engine's events refer to this buffer and are handled before the next read. For short reads, a bytes
object costs less than another callback."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from infergate.core.limits import KIB, MIB
from infergate.core.wire import total_size
from infergate.transport.http2 import events
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Data, Headers, Trailers

_WRITE_HIGH_WATER: Final = 1 * MIB
"""Size of the transport's write buffer in bytes above which writing is paused."""
_MAX_JOINED: Final = 64 * KIB  # up to this many bytes, one copy is cheaper than a vectored write
_LARGE_READ: Final = 64 * KIB
"""A connection without TLS whose last read had at least this many bytes receives into the shared
buffer."""
_SMALL_READ: Final = 16 * KIB
"""A connection whose last read had fewer bytes receives into bytes objects again."""
_BUFFER_SIZE: Final = 256 * KIB
"""Maximum number of bytes of one read. If each DATA frame has one byte, a read of this size blocks
the event loop for 70 ms."""

EngineT = TypeVar("EngineT", bound=Http2Connection)


class CompleteCall(Protocol):
    """A client's call whose message is complete."""

    def begin(self) -> None:
        """Pass the message to the application."""
        ...


_thread: Final = threading.local()


def _shared_buffer() -> bytearray:
    """Return the shared buffer of this thread, which runs one event loop."""
    buffer: bytearray | None = getattr(_thread, "buffer", None)
    if buffer is None:
        buffer = _thread.buffer = bytearray(_BUFFER_SIZE)
    return buffer


class Http2Protocol(asyncio.Protocol, Generic[EngineT]):
    """The asyncio protocol of an HTTP/2 connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EngineT) -> None:
        self.loop: Final = loop
        self.engine: Final = engine
        self._outbound: Final = engine.outbound
        self._transport: asyncio.Transport
        self._will_flush = False
        self._is_tls = False
        self.is_write_paused = False
        self._write_waiters: list[asyncio.Future[None]] = []
        self.complete_calls: list[CompleteCall] = []
        """Calls whose messages are complete. These calls begin after the other received frames are
        handled, because one of the frames may reset the stream."""

    # ---- to be implemented by subclasses

    def _on_stream_opened(self, event: events.Headers) -> None:
        """Handle the headers of a stream that the peer opened."""
        raise NotImplementedError

    def _on_ready(self) -> None:
        """Handle the peer's SETTINGS."""

    def _on_goaway(self) -> None:
        """Handle a GOAWAY frame, after which the peer accepts no new streams."""

    def _on_failed(self, event: events.Failed) -> None:
        raise NotImplementedError

    def _on_output_held(self, size: int) -> None:
        """Handle the addition of `size` bytes to the write buffer while writing is paused."""

    def _close_if_drained(self) -> None:
        """Close the connection if a drain is complete."""

    # ---- asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._transport.set_write_buffer_limits(_WRITE_HIGH_WATER)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self.flush()

    def data_received(self, data: bytes | bytearray, size: int = -1) -> None:
        """Pass the first `size` bytes of `data`, or all bytes if `size` is -1, to the engine and
        handle its events."""
        for event in self.engine.receive(data, self.loop.time(), size):
            kind = type(event)
            if kind is Data:
                event.stream.owner.add(event.parts, event.size, event.end)  # type: ignore[union-attr]
            elif kind is Headers:
                owner = event.stream.owner  # type: ignore[union-attr]
                if owner is None:
                    self._on_stream_opened(event)  # type: ignore[arg-type]
                else:
                    owner.headers(event.fields, event.end)  # type: ignore[union-attr]
            elif kind is Trailers:
                event.stream.owner.end(event.fields)  # type: ignore[union-attr]
            else:
                self._on_other(event)
        if self._outbound.output or self.engine.is_draining:
            self.flush()
        if size < 0 and len(data) >= _LARGE_READ:
            self._start_large_reads()
        if self.complete_calls:
            calls, self.complete_calls = self.complete_calls, []
            for call in calls:
                call.begin()

    def _start_large_reads(self) -> None:
        if not self._is_tls and not self._transport.is_closing():
            # This connection keeps no reference to the new protocol: a cycle would keep closed
            # connections until garbage collection.
            self._transport.set_protocol(LargeReads(self))

    def stop_large_reads(self) -> None:
        """Stop using the shared buffer."""
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def _on_other(self, event: events.Event) -> None:
        match event:
            case events.Sent(stream):
                if stream.owner is not None:
                    stream.owner.sent()
            case events.Reset(stream):
                if stream.owner is not None:
                    stream.owner.on_reset(event)
            case events.Ready():
                self._on_ready()
            case events.Goaway():
                self._on_goaway()
            case events.Failed():
                self._on_failed(event)

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._wake()

    def _wake(self) -> None:
        waiting, self._write_waiters = self._write_waiters, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_writable(self) -> None:
        """Wait until the write buffer has drained, or the connection is closing."""
        if self.is_write_paused and not self._transport.is_closing():
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._write_waiters.append(waiter)
            await waiter

    # ---- sending

    def flush_soon(self) -> None:
        """Write all output of this event loop iteration in one system call at the end of the
        iteration."""
        if not self._will_flush:
            self._will_flush = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write pending output; close the connection if this completes a drain."""
        self._will_flush = False
        parts: list[Any] = self._outbound.output
        transport = self._transport
        if parts:
            self._outbound.output = []
            if not transport.is_closing():
                is_paused = self.is_write_paused
                size_before = transport.get_write_buffer_size() if is_paused else 0
                if len(parts) == 1:
                    transport.write(parts[0])
                elif total_size(parts) <= _MAX_JOINED:
                    transport.write(b"".join(parts))
                else:
                    transport.writelines(parts)
                if is_paused:
                    self._on_output_held(transport.get_write_buffer_size() - size_before)
        if self.engine.is_draining:
            self._close_if_drained()


class LargeReads(asyncio.BufferedProtocol):
    """The transport's protocol while `connection` receives into the shared buffer."""

    def __init__(self, connection: Http2Protocol[Any]) -> None:
        self._connection: Final = connection
        self._buffer: Final = _shared_buffer()
        self._view: Final = memoryview(self._buffer)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(self._buffer, nbytes)
        if nbytes < _SMALL_READ:
            self._connection.stop_large_reads()

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class _NoOwner:
    """The owner of streams whose calls have ended or were refused. It ignores every event."""

    def add(self, *_: object) -> None: ...

    def headers(self, *_: object) -> None: ...

    def end(self, *_: object) -> None: ...

    def sent(self) -> None: ...

    def on_reset(self, *_: object) -> None: ...


NO_OWNER: Final = _NoOwner()
