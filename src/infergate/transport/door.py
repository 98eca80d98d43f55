"""Who is let in to a listener, before anything is asked: how many, and by which TLS.

*Rule.* Who is turned away is disconnected, counted by why, and told to the log in one line; of many
in one second most lines are left out, for whoever floods a port would else flood the log as well.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from typing import Final

from infergate.core.vocabulary import CONNECTION_REFUSED
from infergate.transport.base import Address
from infergate.transport.tls_server import ServerCertificates

log = logging.getLogger(__name__)

HELLO: Final = 9
"""How many bytes tell it."""
_MOST_LINES: Final = 20
"""In a second."""
_UNBOUNDED: Final = 2**31


class Refusal(enum.Enum):
    """Why a connection was refused or ended: the label of a metric."""

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


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Who is at the other end of ``transport``, as it is told in logs."""
    peer = transport.get_extra_info("peername")
    return str(Address(*peer[:2])) if isinstance(peer, tuple) else "unix"


def is_hello(begun: bytes) -> bool:
    """Whether a connection that has ``begun`` so speaks TLS: it is a record of the handshake that
    holds all of a ClientHello (RFC 8446, 5.1 and 4), which no plain protocol here begins with."""
    return (
        len(begun) >= HELLO
        and begun[:2] == b"\x16\x03"
        and begun[5] == 1
        and int.from_bytes(begun[3:5]) == int.from_bytes(begun[6:9]) + 4
    )


class Connections:
    """How many connections several listeners have."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


class Door:
    """A listener's. ``connections`` may be those of several, of which there are to be at most
    ``most``; ``open`` are its own. ``idle`` counts those that it closed because nothing was asked
    on them for too long, which is how most connections end: no log tells of it."""

    __slots__ = (
        "_connections",
        "_lines",
        "_most",
        "_refused",
        "_second",
        "certificates",
        "idle",
        "listener",
        "open",
        "over",
    )

    def __init__(  # noqa: PLR0913 - most of them are for what is told
        self,
        listener: str = "",
        connections: Connections | None = None,
        certificates: ServerCertificates | None = None,
        refused: Callable[[Refusal], None] = lambda _: None,
        over: Callable[[str], None] = lambda _: None,
        *,
        most: int = _UNBOUNDED,
    ) -> None:
        """``listener`` is its name for the log. Without ``certificates`` plain text is spoken.
        ``over`` is told of requests that meet a limit (its name in docs/limits.md) where no
        application is."""
        self.listener = listener
        self.certificates = certificates
        self.open = 0
        self.idle = 0
        self._connections: Final = connections or Connections()
        self._most = most
        self._refused = refused
        self.over = over
        self._second = 0
        self._lines = 0

    def become(self, other: Door) -> None:
        """From now on do as ``other``, which nobody has come through. Both speak TLS, or none."""
        self.listener, self.certificates = other.listener, other.certificates
        self._most, self._refused, self.over = other._most, other._refused, other.over

    @property
    def most(self) -> int:
        """How many connections there may be."""
        return self._most

    @property
    def connections(self) -> int:
        """See ListenerFigures."""
        return self.open

    @property
    def expires(self) -> float | None:
        """See ListenerFigures."""
        return None if self.certificates is None else self.certificates.expires()

    def enter(self, peer: str) -> bool:
        """Count one more connection; False where that would be one too many."""
        if self._connections.open >= self._most:
            self.refuse(Refusal.FULL, peer, f"there are {self._most} connections")
            return False
        self._connections.open += 1
        self.open += 1
        return True

    def leave(self) -> None:
        """A connection that was let in is over."""
        self._connections.open -= 1
        self.open -= 1

    def refuse_tls(self, peer: str) -> None:
        """A connection of ``peer`` speaks TLS where none is spoken."""
        self.refuse(Refusal.TLS, peer, "it speaks TLS, and this is a port of plain text")

    def refuse(self, refusal: Refusal, peer: str, why: str) -> None:
        """A connection of ``peer`` is turned away."""
        self._refused(refusal)
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > _MOST_LINES:
                more = self._lines - _MOST_LINES
                log.info(
                    "%s: %d more were disconnected within a second",
                    self.listener,
                    more,
                    extra=CONNECTION_REFUSED,
                )
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= _MOST_LINES:
            log.info(
                "%s: %s is disconnected: %s", self.listener, peer, why, extra=CONNECTION_REFUSED
            )
