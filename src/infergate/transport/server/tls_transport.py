"""TLS between a client's socket and the protocol that serves it.

A ``TlsTransport`` is the protocol of the socket's transport, and the transport of the protocol that
serves the client. OpenSSL works between two memory BIOs. All connections of a listener share the
receive buffers, because an event loop delivers bytes of one connection at a time.
docs/decisions/0026-tls.md explains why the loops' own TLS is not used.

- Rule 1. Data is encrypted only when the socket can send it. A response that waits for a slow
  reader waits in plain text and counts in ``get_write_buffer_size``. The high-water mark of the
  socket's transport is at most the low-water mark of the serving protocol. Otherwise, the last
  bytes of a response could stay between the two marks, and no callback would resume the protocol.
- Rule 2. The serving protocol is connected only after the handshake, which must complete within
  ``limits.header_time``.
- Rule 3. The connection ends with a close_notify after all written data, without waiting for the
  client's close_notify.
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
from infergate.transport.net.timer import Timer
from infergate.transport.server.connection import ConnectionHost
from infergate.transport.server.connection_gate import ConnectionRefusal, peer_address
from infergate.transport.tls.client_hello import NO_APPLICATION_PROTOCOL, AlpnOffer
from infergate.transport.tls.san_match import SanMatcher, san_names

_MAX_PIECE: Final = 256 * KIB
"""Maximum number of bytes that are received in one read, or encrypted before the socket's buffer is
checked again."""
_HIGH_WATER, _LOW_WATER = 64 * KIB, 16 * KIB
"""Unsent bytes at which the serving protocol is paused and resumed (asyncio's defaults)."""
_HANDSHAKE: Final = 0x16  # the first byte from a TLS client: a handshake record (RFC 8446, 5.1)
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


class TlsBuffers:
    """Buffers for encrypted and decrypted bytes, which the connections of a listener share."""

    def __init__(self) -> None:
        self.encrypted: Final[memoryview] = np.empty(_MAX_PIECE, np.uint8).data
        self.decrypted: Final[memoryview] = np.empty(_MAX_PIECE, np.uint8).data


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS layer of one connection. ``app`` is the serving protocol."""

    def __init__(
        self, host: ConnectionHost, app: asyncio.BaseProtocol, buffers: TlsBuffers
    ) -> None:
        super().__init__()
        self._host: Final = host
        self._app: Final[Any] = app
        self._buffers: Final = buffers
        self._is_buffered: Final = isinstance(app, asyncio.BufferedProtocol)
        self._socket_transport: asyncio.Transport
        self._san_matcher: SanMatcher
        self._ssl: Any  # an SSLObject; typeshed does not allow memoryviews for it
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._timer: Final = Timer(host.loop, self._on_handshake_timeout)
        self._peer = ""
        self._client_names: tuple[str, ...] = ()
        self._has_received = False
        self._alpn_offer: AlpnOffer
        self._is_established = False
        self._is_write_closed = False  # nothing more may be written
        self._is_close_notify_sent = False
        self._is_closing = False
        self._has_client_ended = False
        self._is_reading = True
        self._unsent: deque[Buffer] = deque()
        self._unsent_bytes = 0  # bytes in _unsent
        self._is_socket_paused = False
        self._high, self._low = _HIGH_WATER, _LOW_WATER
        self._is_app_paused = False

    # ---- called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake of an accepted connection."""
        # uvloop's class is not a subclass of asyncio.Transport.
        self._socket_transport = cast("asyncio.Transport", transport)
        self._socket_transport.set_write_buffer_limits(_LOW_WATER, _LOW_WATER)
        self._peer = peer_address(transport)
        if not self._host.register(self, self._peer):
            self.abort()
            return
        certificates = self._host.gate.certificates
        assert certificates is not None
        self._san_matcher = certificates.san_matcher
        self._alpn_offer = AlpnOffer(certificates.protocols)
        context = certificates.context()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._timer.set(self._host.limits.header_time)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffers.encrypted

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt received bytes, or continue the handshake."""
        if self._is_closing or self._is_close_notify_sent:
            return
        encrypted = self._buffers.encrypted
        self._incoming.write(encrypted[:nbytes])
        if self._is_established:
            self._receive()
        elif not self._has_received and encrypted[0] != _HANDSHAKE:
            self._refuse(ConnectionRefusal.PLAIN_TEXT, "the client does not speak TLS")
        else:
            self._has_received = True
            if self._alpn_offer.excludes(encrypted[:nbytes]):
                self._socket_transport.write(NO_APPLICATION_PROTOCOL)
                reason = "the client offers no supported protocol (ALPN)"
                self._refuse(ConnectionRefusal.ALPN, reason)
                return
            self._continue_handshake()

    def eof_received(self) -> None:
        """End the connection, because the client will send no more data."""
        if self._is_established:
            self._on_client_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._timer.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._is_established:
            self._app.connection_lost(exc)
        else:
            self._host.unregister(self)

    def pause_writing(self) -> None:
        self._is_socket_paused = True

    def resume_writing(self) -> None:
        """Send more in the next event loop iteration. If asyncio's transport were closed inside
        this callback, it would call ``connection_lost`` twice."""
        self._is_socket_paused = False
        self._host.loop.call_soon(self._resume_app)

    def _resume_app(self) -> None:
        if self._is_socket_paused or self._socket_transport.is_closing():
            return
        self._flush()
        if self._is_app_paused and self.get_write_buffer_size() <= self._low:
            self._is_app_paused = False
            self._app.resume_writing()

    # ---- the handshake

    def _continue_handshake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            return
        except ssl.SSLError as error:
            self._send_encrypted()  # the TLS alert
            self._refuse(*_describe(error))
            return
        self._send_encrypted()
        self._timer.close()
        self._client_names = san_names(self._ssl.getpeercert())
        has_certificate = self._ssl.getpeercert(binary_form=True) is not None
        if has_certificate and not self._san_matcher.matches(self._client_names):
            names = ", ".join(self._client_names) or "no names"
            reason = f"the client certificate has no allowed name; it has {names}"
            self._refuse(ConnectionRefusal.NAME, reason)
            return
        self._host.unregister(self)  # the serving protocol registers itself
        self._is_established = True
        self._app.connection_made(self)
        self._receive()

    def _on_handshake_timeout(self) -> None:
        self._refuse(ConnectionRefusal.HANDSHAKE_TIME, "the TLS handshake timed out")

    def _refuse(self, reason: ConnectionRefusal, detail: str) -> None:
        self._host.gate.refuse(reason, self._peer, detail)
        self._timer.close()
        self._is_closing = True
        self._socket_transport.close()

    # ---- receiving

    def _receive(self) -> None:
        """Deliver received data to the serving protocol while it reads."""
        more = True
        while more and self._is_reading and not self._is_closing and not self._is_close_notify_sent:
            buffer = self._app.get_buffer(-1) if self._is_buffered else self._buffers.decrypted
            if not len(buffer):
                return
            try:
                size, more = self._decrypt(buffer)
            except ssl.SSLError as error:
                reason = f"TLS: {error.reason}"
                self._host.gate.refuse(ConnectionRefusal.HANDSHAKE, self._peer, reason)
                self._send_encrypted()  # the TLS alert
                self._is_closing = self._is_close_notify_sent = True
                self._socket_transport.close()
                return
            if size and self._is_buffered:
                self._app.buffer_updated(size)
            elif size:
                self._app.data_received(bytes(buffer[:size]))
        if self._has_client_ended and not self._is_closing:
            self._on_client_end()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt into ``buffer``. Return the size of the data, and whether there may be more data.
        Raises SSLError."""
        filled, capacity = 0, len(buffer)
        while filled < capacity:
            try:
                size = self._ssl.read(capacity - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                return filled, False
            if not size:  # the client has sent close_notify
                self._has_client_ended = True
                return filled, False
            filled += size
        return filled, True

    def _on_client_end(self) -> None:
        self._app.eof_received()
        self.close()  # no server of infergate supports half-closed connections

    # ---- sending

    def write(self, data: Buffer) -> None:
        """Send ``data``, or keep a reference to it until the socket can take it."""
        if self._is_closing or self._is_write_closed or not len(data):
            return
        if self._unsent or self._is_socket_paused or len(data) > _MAX_PIECE:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            self._flush()
        else:
            self._encrypt(data)
        self._apply_backpressure()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_closing or self._is_write_closed:
            return
        for data in list_of_data:
            if len(data):
                self._unsent.append(data)
                self._unsent_bytes += len(data)
        self._flush()
        self._apply_backpressure()

    def _apply_backpressure(self) -> None:
        if not self._is_app_paused and self.get_write_buffer_size() > self._high:
            self._is_app_paused = True
            self._app.pause_writing()

    def _flush(self) -> None:
        """Encrypt unsent data while the socket takes it (Rule 1)."""
        while self._unsent and not self._is_socket_paused:
            self._encrypt(self._next_piece())
        if self._is_write_closed and not self._unsent:
            self._send_close_notify()

    def _encrypt(self, piece: Buffer) -> None:
        try:
            sent = self._ssl.write(piece)
            while sent < len(piece):
                sent += self._ssl.write(piece[sent:])
        except ssl.SSLError:
            self._unsent.clear()
            self.abort()
            return
        self._send_encrypted()

    def _next_piece(self) -> Buffer:
        """Remove and join up to ``_MAX_PIECE`` bytes of unsent data, because each piece that is
        encrypted starts a TLS record."""
        waiting, parts, size = self._unsent, [], 0
        while waiting and size < _MAX_PIECE:
            part = waiting.popleft()
            if len(part) > _MAX_PIECE - size:
                view = memoryview(part)
                waiting.appendleft(view[_MAX_PIECE - size :])
                part = view[: _MAX_PIECE - size]
            parts.append(part)
            size += len(part)
        self._unsent_bytes -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _send_encrypted(self) -> None:
        if self._outgoing.pending:
            self._socket_transport.write(self._outgoing.read())

    def _send_close_notify(self) -> None:
        """Send close_notify, then close the socket or only its sending side (Rule 3)."""
        if not self._is_close_notify_sent:
            self._is_close_notify_sent = True
            with contextlib.suppress(ssl.SSLError):  # the client has not sent its close_notify
                self._ssl.unwrap()
            self._send_encrypted()
        if self._is_closing:
            self._socket_transport.close()
        elif self._socket_transport.can_write_eof():
            self._socket_transport.write_eof()

    # ---- asyncio.Transport, for the serving protocol

    def can_write_eof(self) -> bool:
        """Return True, because close_notify ends only one direction."""
        return True

    def write_eof(self) -> None:
        """Send close_notify after the data written so far."""
        self._is_write_closed = True
        self._flush()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = self._is_write_closed = True
            self._flush()

    def abort(self) -> None:
        self._is_closing = True
        self._socket_transport.abort()

    def close_when_idle(self) -> None:
        """Abort. The listener calls this only during the handshake."""
        self.abort()

    def cancel_with(self, error: GatewayError) -> None:  # noqa: ARG002 - there is no request yet
        """Abort. The listener calls this only during the handshake."""
        self.abort()

    def active_requests(self) -> Iterable[asyncio.Future[None]]:
        """Return no requests, because requests exist only after the handshake."""
        return ()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket_transport.is_closing()

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._socket_transport.is_closing():
            self._socket_transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading. Bytes that were already received are delivered in the next event loop
        iteration."""
        if not self._is_reading and not self._socket_transport.is_closing():
            self._is_reading = True
            self._socket_transport.resume_reading()
            self._host.loop.call_soon(self._resume_receiving)

    def _resume_receiving(self) -> None:
        if self._is_established:
            self._receive()

    def is_reading(self) -> bool:
        return self._is_reading and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        mark = min(self._low, _LOW_WATER)
        self._socket_transport.set_write_buffer_limits(mark, mark)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the system has not accepted yet."""
        return self._unsent_bytes + self._socket_transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the names in the client certificate (``peer_identity``), the SSLObject
        (``ssl_object``), or information about the socket."""
        match name:
            case "peer_identity":
                return self._client_names
            case "ssl_object":
                return self._ssl
            case _:
                return self._socket_transport.get_extra_info(name, default)


def _describe(error: ssl.SSLError) -> tuple[ConnectionRefusal, str]:
    """Return the reason for a failed handshake, as a metric label and as text for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionRefusal.CERTIFICATE, f"invalid client certificate: {error.verify_message}"
    if error.reason == _NO_CERTIFICATE:
        return ConnectionRefusal.CERTIFICATE, "the client sent no certificate"
    return ConnectionRefusal.HANDSHAKE, f"the TLS handshake failed: {error.reason or error}"
