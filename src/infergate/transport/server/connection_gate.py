"""The gate of a listener, which limits its connections and holds its TLS settings. Refused
connections are closed, counted by reason, and logged. The log gets at most 20 such lines per
second, and then one line that counts the rest."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from infergate.core.log_events import CONNECTION_REFUSED
from infergate.transport.base import Address
from infergate.transport.tls.server_context import ServerTlsContext

log = logging.getLogger(__name__)

CLIENT_HELLO_PREFIX: Final = 9  # number of bytes by which a ClientHello is recognized
_MAX_LOG_LINES: Final = 20  # log lines per second
_UNLIMITED: Final = 2**31


class ConnectionRefusal(enum.Enum):
    """The reason why a connection was refused or closed. The value is a metric label."""

    FULL = "connections"
    PLAIN_TEXT = "plain_text"
    TLS = "tls"
    HANDSHAKE = "handshake"
    HANDSHAKE_TIME = "handshake_time"
    ALPN = "alpn"
    CERTIFICATE = "client_certificate"
    NAME = "client_name"
    SLOW_READER = "slow_reader"
    FLOOD = "flood"
    PROTOCOL = "protocol"


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the peer address of ``transport`` for logs. It is "unix" for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(Address(*peer[:2])) if isinstance(peer, tuple) else "unix"


def is_client_hello(received: bytes) -> bool:
    """Return whether ``received`` starts with a TLS handshake record that contains a complete
    ClientHello (RFC 8446, 5.1 and 4). No plain-text message that infergate accepts starts with
    these bytes."""
    return (
        len(received) >= CLIENT_HELLO_PREFIX
        and received[:2] == b"\x16\x03"
        and received[5] == 1
        and int.from_bytes(received[3:5]) == int.from_bytes(received[6:9]) + 4
    )


@dataclass(slots=True)
class ConnectionCount:
    """The number of open connections, shared by several listeners."""

    open: int = 0


@dataclass(eq=False)
class ConnectionGate:
    """The connection gate of one listener. Several listeners may share ``all_connections``, so
    that they have at most ``max_connections`` together. ``connections`` counts the open connections
    of this listener. ``closed_idle`` counts connections that were closed for inactivity, which is
    normal and not logged."""

    listener: str = ""
    """The listener's name for the log."""
    all_connections: ConnectionCount = field(default_factory=ConnectionCount)
    certificates: ServerTlsContext | None = None
    on_refused: Callable[[ConnectionRefusal], None] = lambda _: None
    on_limit_reached: Callable[[str], None] = lambda _: None
    """Called with the name of a limit that a request exceeded before it reached the application."""
    max_connections: int = _UNLIMITED
    connections: int = field(default=0, init=False)
    closed_idle: int = field(default=0, init=False)
    _second: int = field(default=0, init=False)
    _logged_lines: int = field(default=0, init=False)

    def copy_settings(self, other: ConnectionGate) -> None:
        """Copy the settings of ``other``, which must not have accepted a connection yet."""
        self.listener, self.certificates = other.listener, other.certificates
        self.max_connections, self.on_refused = other.max_connections, other.on_refused
        self.on_limit_reached = other.on_limit_reached

    @property
    def certificate_expiry(self) -> float | None:
        return None if self.certificates is None else self.certificates.expires()

    def admit(self, peer: str) -> bool:
        """Count a new connection. Return False if the connection exceeds the limit."""
        if self.all_connections.open >= self.max_connections:
            reason = f"the limit of {self.max_connections} connections is reached"
            self.refuse(ConnectionRefusal.FULL, peer, reason)
            return False
        self.all_connections.open += 1
        self.connections += 1
        return True

    def release(self) -> None:
        """Count the end of a connection that was admitted."""
        self.all_connections.open -= 1
        self.connections -= 1

    def refuse_tls(self, peer: str) -> None:
        """Refuse a connection that speaks TLS to a plain-text listener."""
        reason = "the client speaks TLS, but this listener is plain text"
        self.refuse(ConnectionRefusal.TLS, peer, reason)

    def refuse(self, reason: ConnectionRefusal, peer: str, detail: str) -> None:
        """Count and log a connection that is closed for ``reason``. ``detail`` is only logged."""
        self.on_refused(reason)
        second = int(time.monotonic())
        if second != self._second:
            if (more := self._logged_lines - _MAX_LOG_LINES) > 0:
                text = "%s: %d more connections closed within a second"
                log.info(text, self.listener, more, extra=CONNECTION_REFUSED)
            self._second, self._logged_lines = second, 0
        self._logged_lines += 1
        if self._logged_lines <= _MAX_LOG_LINES:
            text = "%s: connection from %s closed: %s"
            log.info(text, self.listener, peer, detail, extra=CONNECTION_REFUSED)
