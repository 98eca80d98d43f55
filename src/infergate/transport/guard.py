"""How much may be served at once, over all listeners of a process."""

from __future__ import annotations

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits

_RETRY_AFTER = 1.0


class Admission:
    """Counts requests being served and the bytes of their bodies; pure arithmetic.

    Every ``admit`` or ``grow`` that returns is undone by one ``release`` of the same request.
    """

    __slots__ = ("_most_bytes", "_most_requests", "bytes", "requests")

    def __init__(self, limits: Limits) -> None:
        self._most_requests = limits.in_flight
        self._most_bytes = limits.in_flight_bytes
        self.requests = 0
        """Requests being served now."""
        self.bytes = 0
        """Bytes of their bodies, those announced and still on their way included."""

    def admit(self, size: int) -> None:
        """Count one more request of ``size`` bytes. Raises OVERLOADED, and counts nothing."""
        if self.requests >= self._most_requests:
            raise GatewayError(
                Kind.OVERLOADED,
                f"the gateway is serving its limit of {self._most_requests} requests",
                retry_after=_RETRY_AFTER,
            )
        self.grow(size)
        self.requests += 1

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes of an admitted request. Raises OVERLOADED, counts nothing."""
        if self.bytes + size > self._most_bytes:
            raise GatewayError(
                Kind.OVERLOADED,
                f"the gateway is serving its limit of {self._most_bytes} bytes of requests",
                retry_after=_RETRY_AFTER,
            )
        self.bytes += size

    def release(self, size: int) -> None:
        """A request that came to ``size`` bytes is done."""
        self.requests -= 1
        self.bytes -= size
