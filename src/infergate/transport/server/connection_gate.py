"""The gate of a listener, which limits its connections and holds its TLS settings. Each refused
connection is closed, counted by reason, and logged in at most 20 lines per second."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """Return whether ``received`` starts a TLS handshake record with a whole ClientHello (RFC 8446,
    5.1 and 4). No message of the plain-text protocols that infergate serves starts like this."""
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


class ConnectionGate:
    """The connection gate of one listener. Several listeners may share ``connections``; all of them
    together have at most ``max_connections``. ``closed_idle`` counts connections closed for
    inactivity, which is normal and not logged."""

    __slots__ = (
        "_connections",
        "_logged_lines",
        "_on_refused",
        "_second",
        "certificates",
        "closed_idle",
        "listener",
        "max_connections",
        "on_limit_reached",
        "open",
    )

    def __init__(  # noqa: PLR0913 - all optional
        self,
        listener: str = "",
        connections: ConnectionCount | None = None,
        certificates: ServerTlsContext | None = None,
        on_refused: Callable[[ConnectionRefusal], None] = lambda _: None,
        on_limit_reached: Callable[[str], None] = lambda _: None,
        *,
        max_connections: int = _UNLIMITED,
    ) -> None:
        """``listener`` is the listener's name for the log. ``on_limit_reached`` is called with the
        name of a limit that a request exceeded before it reached the application."""
        self.listener = listener
        self.certificates = certificates
        self.open = 0
        self.closed_idle = 0
        self._connections: Final = connections or ConnectionCount()
        self.max_connections = max_connections
        self._on_refused = on_refused
        self.on_limit_reached = on_limit_reached
        self._second = 0
        self._logged_lines = 0

    def copy_settings(self, other: ConnectionGate) -> None:
        """Copy the settings of ``other``, which must not have accepted a connection yet."""
        self.listener, self.certificates = other.listener, other.certificates
        self.max_connections, self._on_refused = other.max_connections, other._on_refused
        self.on_limit_reached = other.on_limit_reached

    @property
    def connections(self) -> int:
        return self.open

    @property
    def certificate_expiry(self) -> float | None:
        return None if self.certificates is None else self.certificates.expires()

    def admit(self, peer: str) -> bool:
        """Count a new connection. Return False if the connection exceeds the limit."""
        if self._connections.open >= self.max_connections:
            reason = f"the limit of {self.max_connections} connections is reached"
            self.refuse(ConnectionRefusal.FULL, peer, reason)
            return False
        self._connections.open += 1
        self.open += 1
        return True

    def release(self) -> None:
        """Count the end of a connection that was admitted."""
        self._connections.open -= 1
        self.open -= 1

    def refuse_tls(self, peer: str) -> None:
        """Refuse a connection that speaks TLS to a plain-text listener."""
        reason = "the client speaks TLS, but this listener is plain text"
        self.refuse(ConnectionRefusal.TLS, peer, reason)

    def refuse(self, reason: ConnectionRefusal, peer: str, detail: str) -> None:
        """Count and log a connection that is closed for ``reason``. ``detail`` is only logged."""
        self._on_refused(reason)
        second = int(time.monotonic())
        if second != self._second:
            if self._logged_lines > _MAX_LOG_LINES:
                more = self._logged_lines - _MAX_LOG_LINES
                log.info(
                    "%s: %d more connections closed within a second",
                    self.listener,
                    more,
                    extra=CONNECTION_REFUSED,
                )
            self._second, self._logged_lines = second, 0
        self._logged_lines += 1
        if self._logged_lines <= _MAX_LOG_LINES:
            log.info(
                "%s: connection from %s closed: %s",
                self.listener,
                peer,
                detail,
                extra=CONNECTION_REFUSED,
            )
