"""TLS between a client's socket and the protocol that serves it.

One ``TlsTransport`` per connection is the protocol of the socket's transport and the transport of
the serving protocol. OpenSSL works between two memory BIOs. Bytes arrive in buffers that all
connections of a listener share, because an event loop delivers them one connection at a time. (Why
not the loops' own TLS: docs/decisions/0026-tls.md.)

- Rule 1. Data is encrypted only when the socket can take it. A response that waits for a slow
  reader waits in plain text and counts in ``get_write_buffer_size``.
- Rule 2. The serving protocol learns of the connection only after the handshake, which must
  complete within ``limits.header_time``.
- Rule 3. The connection ends with a close_notify after all written data. The client's close_notify
  is not awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

import numpy as np

from infergate.core.errors import GatewayError
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.transport.door import Refusal, peer_of
from infergate.transport.hosting import Host
from infergate.transport.timer import Timer
from infergate.transport.tls_hello import NO_APPLICATION_PROTOCOL, Offer
from infergate.transport.tls_names import Allowed, names_of

_AT_ONCE: Final = 256 * KIB
"""Bytes received at once, and bytes encrypted before the socket's buffer is checked again."""
_HIGH, _LOW = 64 * KIB, 16 * KIB
"""Unsent bytes at which the serving protocol is paused and resumed (asyncio's defaults)."""
_HANDSHAKE: Final = 0x16
"""The first byte of a TLS client: a handshake record (RFC 8446, 5.1)."""
_ABSENT: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


class Scratches:
    """Receive buffers for encrypted and decrypted bytes, shared by the connections of a
    listener."""

    def __init__(self) -> None:
        self.sealed: Final[memoryview] = np.empty(_AT_ONCE, np.uint8).data
        self.opened: Final[memoryview] = np.empty(_AT_ONCE, np.uint8).data


class Secured(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS layer of one connection; ``app`` is the serving protocol."""

    def __init__(self, host: Host, app: asyncio.BaseProtocol, scratches: Scratches) -> None:
        super().__init__()
        self._host: Final = host
        self._app: Final[Any] = app
        self._scratches: Final = scratches
        self._is_buffered: Final = isinstance(app, asyncio.BufferedProtocol)
        self._raw: asyncio.Transport
        self._allowed: Allowed
        self._ssl: Any  # an SSLObject; typeshed does not allow memoryviews for it
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._timer: Final = Timer(host.loop, self._late)
        self._peer = ""
        self._names: tuple[str, ...] = ()
        self._has_begun = False
        self._offer: Offer
        self._is_open = False
        self._has_ended = False  # nothing more may be written
        self._has_said_so = False
        self._closing = False
        self._client_ended = False
        self._reads = True
        self._waiting: deque[Buffer] = deque()
        self._size = 0  # bytes in _unsent
        self._raw_paused = False
        self._high, self._low = _HIGH, _LOW
        self._app_paused = False

    # ---- called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake of an accepted connection."""
        self._raw = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._peer = peer_of(transport)
        if not self._host.opened(self, self._peer):
            self.abort()
            return
        certificates = self._host.door.certificates
        assert certificates is not None
        self._allowed = certificates.allowed
        self._offer = Offer(certificates.protocols)
        context = certificates.context()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._timer.set(self._host.limits.header_time)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next encrypted bytes."""
        return self._scratches.sealed

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt received bytes, or continue the handshake."""
        if self._closing or self._has_said_so:
            return
        sealed = self._scratches.sealed
        self._incoming.write(sealed[:nbytes])
        if self._is_open:
            self._receive()
        elif not self._has_begun and sealed[0] != _HANDSHAKE:
            self._refuse(Refusal.PLAIN_TEXT, "the client does not speak TLS")
        else:
            self._has_begun = True
            if self._offer.excludes(sealed[:nbytes]):
                self._raw.write(NO_APPLICATION_PROTOCOL)
                self._refuse(Refusal.ALPN, "the client offers no supported protocol (ALPN)")
                return
            self._shake_hands()

    def eof_received(self) -> None:
        """End the connection: the client sends no more."""
        if self._is_open:
            self._end_of_client()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the serving protocol."""
        self._closing = True
        self._timer.close()
        self._waiting.clear()
        self._size = 0
        if self._is_open:
            self._app.connection_lost(exc)
        else:
            self._host.closed(self)

    def pause_writing(self) -> None:
        """Stop sending: the socket's buffer is full."""
        self._raw_paused = True

    def resume_writing(self) -> None:
        """Send more, in the loop's next turn.

        asyncio's transport would report its end twice if it were closed inside this callback.
        """
        self._raw_paused = False
        self._host.loop.call_soon(self._go_on_writing)

    def _go_on_writing(self) -> None:
        if self._raw_paused or self._raw.is_closing():
            return
        self._pump()
        if self._app_paused and self.get_write_buffer_size() <= self._low:
            self._app_paused = False
            self._app.resume_writing()

    # ---- the handshake

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_sealed()
            return
        except ssl.SSLError as error:
            self._send_sealed()  # the alert
            self._refuse(*_told(error))
            return
        self._send_sealed()
        self._timer.close()
        self._names = names_of(self._ssl.getpeercert())
        if self._has_wrong_name:
            names = ", ".join(self._names) or "no names"
            self._refuse(Refusal.NAME, f"the client certificate is for {names}: not allowed")
            return
        self._host.closed(self)  # the serving protocol registers itself
        self._is_open = True
        self._app.connection_made(self)
        self._receive()

    @property
    def _has_wrong_name(self) -> bool:
        shown = self._ssl.getpeercert(binary_form=True) is not None
        return shown and not self._allowed.lets_in(self._names)

    def _late(self) -> None:
        self._refuse(Refusal.HANDSHAKE_TIME, "the TLS handshake timed out")

    def _refuse(self, refusal: Refusal, why: str) -> None:
        self._host.door.refuse(refusal, self._peer, why)
        self._timer.close()
        self._closing = True
        self._raw.close()

    # ---- receiving

    def _receive(self) -> None:
        """Deliver received data to the serving protocol while it reads."""
        more = True
        while more and self._reads and not self._closing and not self._has_said_so:
            buffer = self._app.get_buffer(-1) if self._is_buffered else self._scratches.opened
            if not len(buffer):
                return
            try:
                size, more = self._open(buffer)
            except ssl.SSLError as error:
                self._host.door.refuse(Refusal.HANDSHAKE, self._peer, f"TLS: {error.reason}")
                self._send_sealed()  # the alert
                self._closing = self._has_said_so = True
                self._raw.close()
                return
            if size and self._is_buffered:
                self._app.buffer_updated(size)
            elif size:
                self._app.data_received(bytes(buffer[:size]))
        if self._client_ended and not self._closing:
            self._end_of_client()

    def _open(self, room: memoryview) -> tuple[int, bool]:
        """Decrypt into ``room``; return the number of bytes, and whether there may be more.

        Raises SSLError.
        """
        filled, capacity = 0, len(room)
        while filled < capacity:
            try:
                size = self._ssl.read(capacity - filled, room[filled:])
            except ssl.SSLWantReadError:
                return filled, False
            if not size:  # close_notify
                self._client_ended = True
                return filled, False
            filled += size
        return filled, True

    def _end_of_client(self) -> None:
        self._app.eof_received()
        self.close()  # no server here supports half-closed connections

    # ---- sending

    def write(self, data: Buffer) -> None:
        """Send ``data``, or keep a reference to it until the socket can take it."""
        if self._closing or self._has_ended or not len(data):
            return
        if self._waiting or self._raw_paused or len(data) > _AT_ONCE:
            self._waiting.append(data)
            self._size += len(data)
            self._pump()
        else:
            self._seal(data)
        self._hold_back()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send all of ``list_of_data``."""
        if self._closing or self._has_ended:
            return
        for data in list_of_data:
            if len(data):
                self._waiting.append(data)
                self._size += len(data)
        self._pump()
        self._hold_back()

    def _hold_back(self) -> None:
        if not self._app_paused and self.get_write_buffer_size() > self._high:
            self._app_paused = True
            self._app.pause_writing()

    def _pump(self) -> None:
        """Encrypt unsent data while the socket takes it (Rule 1)."""
        while self._waiting and not self._raw_paused:
            self._seal(self._piece())
        if self._has_ended and not self._waiting:
            self._say_so()

    def _seal(self, piece: Buffer) -> None:
        try:
            sent = self._ssl.write(piece)
            while sent < len(piece):
                sent += self._ssl.write(piece[sent:])
        except ssl.SSLError:
            self._waiting.clear()
            self.abort()
            return
        self._send_sealed()

    def _piece(self) -> Buffer:
        """Return the next data to encrypt.

        Small parts are joined, because each call to OpenSSL starts a new TLS record.
        """
        waiting, taken, size = self._waiting, [], 0
        while waiting and size < _AT_ONCE:
            part = waiting.popleft()
            if len(part) > _AT_ONCE - size:
                view = memoryview(part)
                waiting.appendleft(view[_AT_ONCE - size :])
                part = view[: _AT_ONCE - size]
            taken.append(part)
            size += len(part)
        self._size -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _send_sealed(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _say_so(self) -> None:
        """Send close_notify and end the socket (Rule 3)."""
        if not self._has_said_so:
            self._has_said_so = True
            with contextlib.suppress(ssl.SSLError):  # the client has not sent its close_notify
                self._ssl.unwrap()
            self._send_sealed()
        if self._closing:
            self._raw.close()
        elif self._raw.can_write_eof():
            self._raw.write_eof()

    # ---- asyncio.Transport, for the serving protocol

    def can_write_eof(self) -> bool:
        """Return True: close_notify ends one direction."""
        return True

    def write_eof(self) -> None:
        """Send close_notify after the data written so far."""
        self._has_ended = True
        self._pump()

    def close(self) -> None:
        """Close when all data is sent."""
        if not self._closing:
            self._closing = self._has_ended = True
            self._pump()

    def abort(self) -> None:
        """Close now."""
        self._closing = True
        self._raw.abort()

    def finish(self) -> None:
        """Abort. The listener calls this only during the handshake."""
        self.abort()

    def give_up(self, error: GatewayError) -> None:  # noqa: ARG002 - there is no request yet
        """Abort. The listener calls this only during the handshake."""
        self.abort()

    def calls(self) -> Iterable[asyncio.Task[None]]:
        """Return no tasks: no request exists before the handshake is complete."""
        return ()

    def is_closing(self) -> bool:
        """Whether the transport is closed or closing."""
        return self._closing or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        self._reads = False
        if not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading; bytes already received are delivered in the loop's next turn."""
        if not self._reads and not self._raw.is_closing():
            self._reads = True
            self._raw.resume_reading()
            self._host.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_open:
            self._receive()

    def is_reading(self) -> bool:
        """Whether the transport is reading."""
        return self._reads and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the thresholds for pausing and resuming the serving protocol."""
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the system has not taken yet."""
        return self._size + self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information on the socket, or ``peer_identity``: the names in the client's
        certificate."""
        match name:
            case "peer_identity":
                return self._names
            case "ssl_object":
                return self._ssl
            case _:
                return self._raw.get_extra_info(name, default)


def _told(error: ssl.SSLError) -> tuple[Refusal, str]:
    """Return why a handshake failed, as a metric label and as text for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refusal.CERTIFICATE, f"invalid client certificate: {error.verify_message}"
    if error.reason == _ABSENT:
        return Refusal.CERTIFICATE, "the client sent no certificate"
    return Refusal.HANDSHAKE, f"the TLS handshake failed: {error.reason or error}"
