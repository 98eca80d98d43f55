"""Bounds on what one request may ask of the gateway. Precedents: docs/limits.md."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What codecs and transports refuse to exceed. Sizes in bytes, times in seconds."""

    on_loop: ClassVar[bool] = False
    """Whether the work is done on the event loop and may take it a short time only."""
    body: int = 64 * MIB
    """A request or answer, and what a compressed one may inflate to (Triton HTTP: 64 MiB)."""
    json: int = 32 * MIB
    """The JSON part of a body, and each event of a server's stream."""
    json_inline: int = 256 * KIB
    """JSON that the serving process reads and writes itself; longer is done by another, for it
    holds the interpreter 2 to 90 ms a MiB."""
    headers: int = 16 * KIB
    """All header lines or metadata of one request (Caddy, h11: 16 KiB). More where a listener's
    protocols need it (``CodecPlugin.headers``)."""
    response_header: int = 64 * KIB
    """The longest header line of a backend's response (Envoy: 60 KiB). More where the backend's
    protocol needs it (``CodecPlugin.response_header``)."""
    header_count: int = 100
    """Header lines of one request (Envoy 100, HAProxy 101)."""
    tensors: int = 1024
    """Tensors (inputs, requested outputs) in one request."""
    rank: int = 64
    """Dimensions of one tensor (numpy: 64)."""
    header_time: float = 10.0
    """From the first byte of a request (or the connection) to the end of its headers."""
    idle_body_time: float = 30.0
    """Longest pause inside a request body."""
    keepalive_time: float = 75.0
    """How long an idle client connection stays open (nginx: 75 s)."""
    connect_time: float = 1.0
    """Connecting to an endpoint (linkerd: 1 s)."""
    streams: int = 100
    """Concurrent HTTP/2 streams a connection (h2, HAProxy: 100)."""
    regions: int = 256
    """Registered regions of shared memory; each holds a file open."""
    connections: int = 10_000
    """Connections of clients that a process has open at once."""
    in_flight: int = 1024
    """Requests being served at once (Envoy: 1024)."""
    in_flight_bytes: int = 1024 * MIB
    """Bytes of memory that requests hold at once: bodies, what is made of them, and answers."""


class LoopLimits(Limits):
    """The same limits for work on the event loop: what would take longer than the loop can spare
    raises ``CostlyError`` before it begins. In another process they are plain limits."""

    __slots__ = ()
    on_loop: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Limits, astuple(self)


class CostlyError(Exception):
    """The work is within the limits but takes too long for the event loop: a helper must do it."""


DEFAULT_LIMITS: Final = Limits()
HEADER_BUDGET: Final = 7168
"""Bytes of all client headers that a backend is sent, counted as in RFC 9113, 6.5.2. Triton
and aiohttp close a connection over 8190 bytes, gRPC servers may refuse metadata from 8 KiB on, and
the gateway adds fields of its own."""
ELEMENTS_ON_LOOP: Final = 1 << 15
"""BYTES elements of a message that the event loop reads: each takes it 0.1 to 0.7 µs."""


def check_loop(limits: Limits, amount: int, most: int) -> None:
    """Raises CostlyError where the event loop is to do more than ``most`` of something."""
    if amount > most and limits.on_loop:
        raise CostlyError


def for_loop(limits: Limits) -> LoopLimits:
    """``limits`` for work on the event loop."""
    return LoopLimits(*astuple(limits))
