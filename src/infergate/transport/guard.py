"""How much may be served at once, over all listeners of a process."""

from __future__ import annotations

import math
import time
from operator import itemgetter
from typing import ClassVar, Final, Protocol

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import IN_FLIGHT_BYTES, SMALL
from infergate.transport.timer import body_due

MOST_STREAMS: Final = 1024
"""Streams of a process, which may stay open for hours. A connection has at most
``limits.streams``: HTTP/2 sees to that."""
RESERVED: Final = 16
"""One part in so many of ``limits.in_flight_bytes`` is for what is short (``memory.SMALL``)."""
GRACE: Final = 1.0
"""Seconds that a reader has in any case, where memory is short."""
PAUSE: Final = 2.0
"""Seconds that it may then pause, and that a sender has in any case."""
LOOK: Final = 0.5
"""Seconds between two looks for slow clients."""
_RETRY_AFTER: Final = 1.0


class Admission:
    """Counts requests being served, the bytes of memory that they hold and of answers that wait for
    slow readers, and streams.

    Every ``admit`` or ``grow`` that returns is undone by one ``release`` of the same request, every
    ``admit_stream`` by one ``release_stream``. Streams are no requests: a thousand idle watchers
    of health must not keep inferences out.
    """

    __slots__ = (
        "_looked",
        "_most_bytes",
        "_most_requests",
        "_patience",
        "awaited",
        "bytes",
        "requests",
        "streams",
    )

    def __init__(self, limits: Limits) -> None:
        self.keep(limits)
        self.requests = 0
        """Requests being served now."""
        self.bytes = 0
        """Bytes of their bodies, those announced and still on their way included; of what was made
        of them and of what backends answered; and of answers that are not sent."""
        self.awaited: Final[dict[Awaited, None]] = {}
        """Those of them that wait for clients, which read an answer or send a body."""
        self._looked = -math.inf
        self.streams = 0
        """Streams open now."""

    def keep(self, limits: Limits) -> None:
        """From now on admit as many as ``limits`` say; what is admitted stays."""
        self._most_requests = limits.in_flight
        self._most_bytes = limits.in_flight_bytes
        self._patience = limits.idle_body_time

    def admit(self, size: int) -> None:
        """Count one more request of ``size`` bytes. Raises OVERLOADED, and counts nothing."""
        if self.requests >= self._most_requests:
            raise _full(f"{self._most_requests} requests", "in_flight")
        self.grow(size)
        self.requests += 1

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes of an admitted request. Raises OVERLOADED, counts nothing."""
        most = self._most_bytes
        if size > SMALL:
            most -= most // RESERVED
        if self.bytes + size > most:
            self._cut_off_slow()
            raise _full(f"{self._most_bytes} bytes in memory", IN_FLIGHT_BYTES)
        self.bytes += size

    def _cut_off_slow(self) -> None:
        """Memory is short: give up slow clients until a quarter is free, first those that hold most
        for the longest time."""
        now = time.monotonic()
        if now < self._looked + LOOK:
            return
        self._looked = now
        slow = []
        for each in self.awaited:
            if each.size > SMALL:
                if each.is_slow(now, self._patience):
                    slow.append((each.size * each.seconds_left(now), each.size, each))
                else:
                    each.restart_rate(now)
        excess = self.bytes - self._most_bytes * 3 // 4
        for _, _, each in sorted(slow, key=itemgetter(0, 1), reverse=True):
            if excess <= 0:
                return
            excess -= each.size
            each.cut_off()

    def release(self, size: int) -> None:
        """A request that holds ``size`` bytes is done."""
        self.requests -= 1
        self.bytes -= size

    def admit_stream(self) -> None:
        """Count one more stream. Raises OVERLOADED, and counts nothing."""
        if self.streams >= MOST_STREAMS:
            raise _full(f"{MOST_STREAMS} streams", "transport.guard.MOST_STREAMS")
        self.streams += 1

    def release_stream(self) -> None:
        """A stream has ended."""
        self.streams -= 1


class Share:
    """What one request takes of ``admission``: its body, and what is made of that. It is given back
    at most once. Implements :class:`infergate.core.memory.MemoryShare`."""

    __slots__ = ("_admission", "_bytes", "_taken")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self._taken = False

    def take(self, size: int) -> None:
        """Have it admitted with ``size`` bytes. Raises OVERLOADED."""
        self._admission.admit(size)
        self._taken = True
        self._bytes = size

    @property
    def is_taken(self) -> bool:
        """Whether it was admitted, and is not given back."""
        return self._taken

    def receive(self, size: int) -> None:
        """``size`` bytes more of its body came. Raises OVERLOADED."""
        self._admission.grow(size)
        self._bytes += size

    def grow(self, size: int) -> None:
        """See MemoryShare. Of a request that was given back nothing is counted."""
        if self._taken:
            if self._bytes == self._admission.bytes:
                self._admission.bytes += size
            else:
                self._admission.grow(size)
            self._bytes += size

    def shrink(self, size: int) -> None:
        """See MemoryShare."""
        if self._taken:
            self._admission.bytes -= size
            self._bytes -= size

    def detach(self, size: int) -> Share:
        """See MemoryShare. The new account belongs to no request: it is closed, not released."""
        other = Share(self._admission)
        if self._taken:
            self._bytes -= size
            other._taken, other._bytes = True, size
        return other

    def close(self) -> None:
        """See DetachedMemory."""
        self.shrink(self._bytes)
        self._taken = False

    def release(self) -> None:
        """Give back what was taken, if anything was."""
        if self._taken:
            self._taken = False
            self._admission.release(self._bytes)


def shutting_down() -> GatewayError:
    """What is under way when the time for that is over."""
    return GatewayError(Kind.OVERLOADED, "the gateway is shutting down", retry_after=_RETRY_AFTER)


class Client(Protocol):
    """A client that the gateway waits for while it holds an answer for it."""

    def awaited(self) -> int:
        """Bytes that the client has not taken yet."""
        ...

    def cut_off(self) -> None:
        """Give the client up soon, but not inside this call: its memory is needed."""
        ...


class Sender(Protocol):
    """A client that sends a body."""

    def cut_off_sender(self) -> None:
        """Refuse the body soon, but not inside this call, if it is still slow then."""
        ...


class Awaited:
    """Memory that is held until a client has taken, or sent, all of it. It is known to
    ``admission`` from ``begin`` to ``end``, which gives up the slowest where memory is short. Times
    are on the loop's clock.

    The rate is measured from a mark, which moves while memory is short: what a client did long ago
    does not excuse it."""

    __slots__ = (
        "_admission",
        "_client",
        "_done",
        "_last",
        "_left",
        "_mark",
        "_mark_done",
        "_since",
        "size",
    )
    _grace: ClassVar = GRACE

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._client: Client | None = None  # while it is waited for: no cycle may stay
        self.size = self._left = self._done = self._mark_done = 0
        self._since = self._last = self._mark = 0.0

    def begin(self, size: int, now: float, client: Client) -> None:
        """So many bytes wait for ``client`` from now on."""
        self._client = client
        self._begin(size, now)

    def _begin(self, size: int, now: float) -> None:
        self.size = self._left = size
        self._done = self._mark_done = 0
        self._since = self._last = self._mark = now
        self._admission.awaited[self] = None

    def left(self, size: int, now: float) -> None:
        """So many still do."""
        if size != self._left:
            self._last = now
            self._done += self._left - size
            self._left = size

    def end(self) -> None:
        """None do any more."""
        self._admission.awaited.pop(self, None)
        self._client = None
        self.size = self._left = 0

    def seconds_left(self, now: float) -> float:
        """How long the client would need for the rest at its rate; infinite where it has paused,
        and 0 as long as that cannot be told."""
        if not self.size:
            return 0.0
        if self._client is not None:
            self.left(self._client.awaited(), now)
        span, done = now - self._mark, self._done - self._mark_done
        if span < (self._grace if self._mark == self._since else PAUSE):
            return 0.0
        if now - self._last >= PAUSE or done <= 0:
            return math.inf if self._left else 0.0
        return self._left * span / done

    def is_slow(self, now: float, patience: float) -> bool:
        """Whether that is more than ``patience``."""
        return self.seconds_left(now) > patience

    def restart_rate(self, now: float) -> None:
        """The client is not slow: measure it from now on."""
        if now - self._mark >= PAUSE:
            self._mark, self._mark_done = now, self._done

    def cut_off(self) -> None:
        """See Client."""
        if self._client is not None:
            self._client.cut_off()


class Unsent(Awaited):
    """What of an answer waits for a slow reader: counted with the bytes of requests, though never
    refused for it, until all of it is taken: a buffer is freed in one piece. The reader has to take
    some in any ``limits.idle_body_time``, and to keep up the rate that a body has to."""

    __slots__ = ()

    def begin(self, size: int, now: float, client: Client) -> None:
        """See Awaited."""
        self._admission.bytes += size - self.size
        super().begin(size, now, client)

    def grow(self, size: int) -> None:
        """So many more do."""
        self._admission.bytes += size
        self.size += size
        self._left += size

    def due(self, limits: Limits) -> float:
        """When more has to be taken."""
        return body_due(limits, self._since, self._done, self._last)

    def end(self) -> None:
        """See Awaited."""
        self._admission.bytes -= self.size
        super().end()


class Unreceived(Awaited):
    """A body on its way in, whose memory its request's Share counts from the moment that its length
    is known. Where no length was announced, as much as has come is taken to be still to come."""

    __slots__ = ("_sender",)
    _grace: ClassVar = PAUSE  # a connection across the world begins slowly

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._sender: Sender | None = None

    def receive(self, size: int, left: int, now: float, sender: Sender) -> None:
        """The body of ``sender`` holds ``size`` bytes of memory, and ``left`` of them are to come;
        0: no length was announced."""
        if self._sender is None:
            self._sender = sender
            self._begin(size, now)
        self.size, self._done, self._left = size, size - left, left or size
        self._last = now

    def end(self) -> None:
        """See Awaited."""
        super().end()
        self._sender = None

    def cut_off(self) -> None:
        """See Sender."""
        if self._sender is not None:
            self._sender.cut_off_sender()


def too_slow() -> GatewayError:
    """A body that comes slowly while its memory is needed."""
    return GatewayError(
        Kind.OVERLOADED,
        "the request came too slowly while the gateway's memory is short",
        retry_after=_RETRY_AFTER,
        limit=IN_FLIGHT_BYTES,
    )


def _full(what: str, limit: str) -> GatewayError:
    return GatewayError(
        Kind.OVERLOADED,
        f"the gateway is serving its limit of {what}",
        retry_after=_RETRY_AFTER,
        limit=limit,
    )
