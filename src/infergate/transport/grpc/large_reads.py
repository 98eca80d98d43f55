"""Receiving long messages. An event loop returns each read as a new bytes object, which costs a
copy. While a peer sends much, the bytes are received into a buffer that all connections of a thread
share; the engine's events refer to it, and are handled before the next read.

For short reads, the bytes object costs less than the additional callback.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, Protocol

from infergate.core.limits import KIB, MIB

LARGE_READ: Final = 64 * KIB
"""A connection that received at least this many bytes at once receives into the shared buffer."""
_SMALL_READ: Final = 16 * KIB
"""A connection that received fewer bytes at once receives bytes objects again."""
_BUFFER_SIZE: Final = 1 * MIB


class _Thread(threading.local):
    """The buffer of each thread, and so of each event loop."""

    def __init__(self) -> None:
        self.buffer = bytearray(_BUFFER_SIZE)


_thread: Final = _Thread()


class ReceivingConnection(Protocol):
    """The protocol of a connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        ...

    def eof_received(self) -> bool | None:
        """See asyncio.Protocol."""
        ...

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        ...

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        ...

    def data_received(self, data: bytes | bytearray, size: int) -> None:
        """Process the first `size` bytes of `data`, which is overwritten afterwards."""
        ...

    def stop_large_reads(self) -> None:
        """Receive bytes objects again."""
        ...


class LargeReads(asyncio.BufferedProtocol):
    """The transport's protocol while `connection` receives into the shared buffer."""

    def __init__(self, connection: ReceivingConnection) -> None:
        self._connection: Final = connection
        self._buffer: Final = _thread.buffer
        self._view: Final = memoryview(self._buffer)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the shared buffer."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the received bytes on."""
        self._connection.data_received(self._buffer, nbytes)
        if nbytes < _SMALL_READ:
            self._connection.stop_large_reads()

    def eof_received(self) -> bool | None:
        """Pass the event on."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the event on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on."""
        self._connection.resume_writing()
