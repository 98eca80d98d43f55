"""The limits on requests, connections and memory. docs/limits.md compares each limit with the
limits of other servers."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that codecs and transports enforce. Sizes are in bytes, and times are in
    seconds."""

    is_on_event_loop: ClassVar[bool] = False
    """Whether these limits apply to work on the event loop, which must be short."""
    body: int = 64 * MIB
    """Maximum size of a request or response, before and after inflation (Triton HTTP: 64 MiB)."""
    json: int = 32 * MIB
    """Maximum size of the JSON part of a body, and of each event of a backend's stream."""
    json_inline: int = 256 * KIB
    """Maximum size of JSON that is read and written on the event loop. Longer JSON goes to a helper
    process, because JSON libraries hold the interpreter lock for 2 to 90 ms per MiB."""
    headers: int = 16 * KIB
    """Maximum size of all header lines, or of the metadata, of one request (Caddy, h11: 16 KiB).
    The limit is higher if a listener's protocol needs it (``CodecPlugin.min_header_bytes``)."""
    response_header: int = 64 * KIB
    """Maximum length of a header line of a backend's response (Envoy: 60 KiB for all lines). The
    limit is higher if the backend's protocol needs it
    (``CodecPlugin.max_response_header_bytes``)."""
    header_count: int = 100
    """Maximum number of header lines of one request (Envoy: 100, HAProxy: 101)."""
    tensors: int = 1024
    """Maximum number of tensors (inputs or requested outputs) of one request."""
    rank: int = 64
    """Maximum number of dimensions of a tensor (numpy: 64)."""
    header_time: float = 10.0
    """Maximum time from the first byte of a request, or the start of the connection, to the end of
    its headers."""
    idle_body_time: float = 30.0
    """Maximum pause within a request body."""
    keepalive_time: float = 75.0
    """Time for which an idle client connection stays open (nginx: 75 s)."""
    connect_time: float = 1.0
    """The timeout for connecting to an endpoint (linkerd: 1 s)."""
    streams: int = 100
    """Maximum number of concurrent HTTP/2 streams of a connection (h2, HAProxy: 100)."""
    regions: int = 256
    """Maximum number of registered shared memory regions. Each region keeps a file open."""
    connections: int = 10_000
    """Maximum number of open client connections of a process."""
    in_flight: int = 1024
    """Maximum number of concurrent requests (Envoy: 1024)."""
    in_flight_bytes: int = 1024 * MIB
    """Maximum memory that the requests in progress may hold together: bodies, translations and
    responses."""


class LoopLimits(Limits):
    """``Limits`` for work on the event loop.

    Work that would block the loop for too long raises ``NeedsOffloadError`` before it begins.
    Helper processes use plain ``Limits``."""

    __slots__ = ()
    is_on_event_loop: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Limits, astuple(self)


class NeedsOffloadError(Exception):
    """The work is too long for the event loop; a helper process must do it."""


DEFAULT_LIMITS: Final = Limits()
FORWARDED_HEADER_BYTES: Final = 7168
"""The default maximum size of the client headers sent to a backend, counted as in RFC 9113, 6.5.2.
Triton and aiohttp close the connection if headers exceed 8190 bytes, gRPC servers may reject
metadata of 8 KiB or more, and the gateway adds its own headers."""
MAX_ELEMENTS_ON_LOOP: Final = 1 << 15
"""The maximum number of BYTES elements of a message that are read on the event loop; reading an
element takes 0.1 to 0.7 µs."""


def check_loop_cost(limits: Limits, amount: int, max_amount: int) -> None:
    """Raise NeedsOffloadError on the event loop if ``amount`` exceeds ``max_amount``."""
    if amount > max_amount and limits.is_on_event_loop:
        raise NeedsOffloadError


def event_loop_limits(limits: Limits) -> LoopLimits:
    """Return ``limits`` for work on the event loop."""
    return LoopLimits(*astuple(limits))
