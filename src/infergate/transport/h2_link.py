"""What server and client share of an HTTP/2 connection on an asyncio transport.

*Strategy.* Bytes go into the core, its events to the methods of those derived from this; what the
core wants sent is written once a turn of the loop, all of it together.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from infergate.core.limits import KIB, MIB
from infergate.transport.h2.connection import Connection
from infergate.transport.h2.events import (
    Data,
    Event,
    Failed,
    Goaway,
    Headers,
    Ready,
    Reset,
    Sent,
    Trailers,
)

_MOST_UNWRITTEN: Final = 1 * MIB
"""Bytes in the transport's buffer beyond which the peer does not keep up."""
_JOINED: Final = 64 * KIB
"""Up to so many bytes a copy costs less than telling the system of their parts."""


class Link(asyncio.Protocol):
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: Connection) -> None:
        self.loop: Final = loop
        self._core: Final = core
        self._transport: asyncio.Transport
        self._will_flush = False
        self.paused = False
        self._resumed: list[asyncio.Future[None]] = []

    # ---- what those derived from it say

    def _on_headers(self, event: Headers) -> None:
        raise NotImplementedError

    def _on_ready(self) -> None:
        """The peer's settings have come."""

    def _on_goaway(self, event: Goaway) -> None:
        """The peer takes no more streams."""

    def _on_failed(self, event: Failed) -> None:
        raise NotImplementedError

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._transport.set_write_buffer_limits(_MOST_UNWRITTEN)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Let the core look at it, and act."""
        for event in self._core.receive(data, self.loop.time()):
            kind = type(event)
            if kind is Data:
                event.stream.owner.add(event.parts, event.size, event.end)  # type: ignore[union-attr]
            elif kind is Headers:
                self._on_headers(event)  # type: ignore[arg-type]
            elif kind is Trailers:
                event.stream.owner.end(event.fields)  # type: ignore[union-attr]
            else:
                self._on_other(event)
        self.flush()

    def _on_other(self, event: Event) -> None:
        match event:
            case Sent(stream):
                if stream.owner is not None:
                    stream.owner.sent()
            case Reset(stream):
                if stream.owner is not None:
                    stream.owner.gone(event)
            case Ready():
                self._on_ready()
            case Goaway():
                self._on_goaway(event)
            case Failed():
                self._on_failed(event)

    def pause_writing(self) -> None:
        """The peer does not keep up."""
        self.paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self.paused = False
        self._wake()

    def _wake(self) -> None:
        waiting, self._resumed = self._resumed, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def writable(self) -> None:
        """Wait until the peer keeps up, or is gone."""
        if self.paused and not self._transport.is_closing():
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._resumed.append(waiter)
            await waiter

    # ---- sending

    def flush_soon(self) -> None:
        """What is to be sent is written at the end of this turn: the calls of a turn share one
        write, which costs more than the turn does."""
        if not self._will_flush:
            self._will_flush = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        self.flush()

    def flush(self) -> None:
        """Write what is to be sent."""
        parts: list[Any] = self._core.take()
        if not parts or self._transport.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif sum(map(len, parts)) <= _JOINED:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)


class _Nobody:
    """Owns streams whose calls are over, or were refused."""

    def add(self, *_: object) -> None:
        """Throw it away."""

    headers = end = sent = gone = add


NOBODY: Final = _Nobody()
