"""Admission control: how much may be in progress at once, over all listeners of a process."""

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
"""Maximum number of streams per process; they may stay open for hours.

HTTP/2 limits each connection to ``limits.streams``.
"""
RESERVED: Final = 16
"""One part in ``RESERVED`` of ``limits.in_flight_bytes`` is reserved for short bodies
(``memory.SMALL``)."""
GRACE: Final = 1.0
"""Seconds that a reader always gets when memory is short."""
PAUSE: Final = 2.0
"""Seconds that a client may pause after that; also the initial grace period of a sender."""
LOOK: Final = 0.5
"""Seconds between two searches for slow clients."""
_RETRY_AFTER: Final = 1.0


class Admission:
    """Counts requests in progress, the memory they hold, unsent responses, and streams.

    Every ``admit`` or ``grow`` that returns is undone by one ``release`` of the same request, and
    every ``admit_stream`` by one ``release_stream``. Streams are counted apart from requests: a
    thousand idle health watches must not block inferences.
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
        """Requests in progress."""
        self.bytes = 0
        """Bytes held: request bodies (including announced bytes that are still missing), data
        derived from them, backend responses, and unsent responses."""
        self.awaited: Final[dict[Awaited, None]] = {}
        """Transfers that wait for a client to read a response or to send a body."""
        self._looked = -math.inf
        self.streams = 0
        """Open streams."""

    def keep(self, limits: Limits) -> None:
        """Apply new limits from now on; what is already admitted stays."""
        self._most_requests = limits.in_flight
        self._most_bytes = limits.in_flight_bytes
        self._patience = limits.idle_body_time

    def admit(self, size: int) -> None:
        """Count a new request of ``size`` bytes. Raises OVERLOADED, and then counts nothing."""
        if self.requests >= self._most_requests:
            raise _full(f"{self._most_requests} requests", "in_flight")
        self.grow(size)
        self.requests += 1

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes of an admitted request. Raises OVERLOADED, and then counts
        nothing."""
        allowed = self._most_bytes
        if size > SMALL:
            allowed -= allowed // RESERVED
        if self.bytes + size > allowed:
            self._cut_off_slow()
            raise _full(f"{self._most_bytes} bytes in memory", IN_FLIGHT_BYTES)
        self.bytes += size

    def _cut_off_slow(self) -> None:
        """Disconnect slow clients until a quarter of the memory is free.

        Clients that would hold the most memory for the longest time go first.
        """
        now = time.monotonic()
        if now < self._looked + LOOK:
            return
        self._looked = now
        slow = []
        for transfer in self.awaited:
            if transfer.size > SMALL:
                if transfer.is_slow(now, self._patience):
                    slow.append(
                        (transfer.size * transfer.seconds_left(now), transfer.size, transfer)
                    )
                else:
                    transfer.restart_rate(now)
        excess = self.bytes - self._most_bytes * 3 // 4
        for _, _, transfer in sorted(slow, key=itemgetter(0, 1), reverse=True):
            if excess <= 0:
                return
            excess -= transfer.size
            transfer.cut_off()

    def release(self, size: int) -> None:
        """Finish a request that holds ``size`` bytes."""
        self.requests -= 1
        self.bytes -= size

    def admit_stream(self) -> None:
        """Count a new stream. Raises OVERLOADED, and then counts nothing."""
        if self.streams >= MOST_STREAMS:
            raise _full(f"{MOST_STREAMS} streams", "transport.guard.MOST_STREAMS")
        self.streams += 1

    def release_stream(self) -> None:
        """Finish a stream."""
        self.streams -= 1


class Share:
    """The account of one request in ``admission``: its body and the data derived from it.

    It is released at most once. Implements ``MemoryAccount``.
    """

    __slots__ = ("_admission", "_bytes", "_taken")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self._taken = False

    def take(self, size: int) -> None:
        """Admit the request with ``size`` bytes. Raises OVERLOADED."""
        self._admission.admit(size)
        self._taken = True
        self._bytes = size

    @property
    def is_taken(self) -> bool:
        """Whether the request is admitted and not released."""
        return self._taken

    def receive(self, size: int) -> None:
        """Count ``size`` more body bytes. Raises OVERLOADED."""
        self._admission.grow(size)
        self._bytes += size

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes; nothing once the request is released.

        A request that holds all memory in use may always grow.
        """
        if self._taken:
            if self._bytes == self._admission.bytes:
                self._admission.bytes += size
            else:
                self._admission.grow(size)
            self._bytes += size

    def shrink(self, size: int) -> None:
        """Count ``size`` bytes less."""
        if self._taken:
            self._admission.bytes -= size
            self._bytes -= size

    def detach(self, size: int) -> Share:
        """Move ``size`` bytes to a new account, which belongs to no request: it is closed, not
        released."""
        account = Share(self._admission)
        if self._taken:
            self._bytes -= size
            account._taken, account._bytes = True, size
        return account

    def close(self) -> None:
        """Close a detached account."""
        self.shrink(self._bytes)
        self._taken = False

    def release(self) -> None:
        """Release the request if it was admitted."""
        if self._taken:
            self._taken = False
            self._admission.release(self._bytes)


def shutting_down() -> GatewayError:
    """Return the error for requests that are still in progress when the grace period ends."""
    return GatewayError(Kind.OVERLOADED, "the gateway is shutting down", retry_after=_RETRY_AFTER)


class Client(Protocol):
    """A client that has not read all of its response."""

    def awaited(self) -> int:
        """Return the number of bytes that the client has not taken yet."""
        ...

    def cut_off(self) -> None:
        """Disconnect the client soon, but not inside this call."""
        ...


class Sender(Protocol):
    """A client that is sending a body."""

    def cut_off_sender(self) -> None:
        """Reject the body soon, but not inside this call, if it is still slow then."""
        ...


class Awaited:
    """Memory held until a client has read, or sent, all of it.

    It is registered with ``admission`` from ``start`` to ``finish``. When memory is short,
    ``admission`` disconnects the slowest clients. Times are on the loop's clock. The rate is
    measured from a mark that moves while memory is short, so that a fast start does not excuse a
    slow client.
    """

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
        self._client: Client | None = None  # only while waiting, to leave no reference cycle
        self.size = self._left = self._done = self._mark_done = 0
        self._since = self._last = self._mark = 0.0

    def begin(self, size: int, now: float, client: Client) -> None:
        """Start waiting for ``client`` to take ``size`` bytes."""
        self._client = client
        self._begin(size, now)

    def _begin(self, size: int, now: float) -> None:
        self.size = self._left = size
        self._done = self._mark_done = 0
        self._since = self._last = self._mark = now
        self._admission.awaited[self] = None

    def left(self, size: int, now: float) -> None:
        """Record that ``size`` bytes are left."""
        if size != self._left:
            self._last = now
            self._done += self._left - size
            self._left = size

    def end(self) -> None:
        """Stop waiting."""
        self._admission.awaited.pop(self, None)
        self._client = None
        self.size = self._left = 0

    def seconds_left(self, now: float) -> float:
        """Return how long the client needs for the rest at its rate.

        Infinite if it has paused; 0 as long as the rate is unknown.
        """
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
        """Whether the client needs more than ``patience`` seconds for the rest."""
        return self.seconds_left(now) > patience

    def restart_rate(self, now: float) -> None:
        """Measure the rate from now on; the client is not slow."""
        if now - self._mark >= PAUSE:
            self._mark, self._mark_done = now, self._done

    def cut_off(self) -> None:
        """Disconnect the client."""
        if self._client is not None:
            self._client.cut_off()


class Unsent(Awaited):
    """The unsent part of a response that waits for a slow reader.

    It counts as memory but is never refused, and stays counted until all of it is taken, because
    buffers are freed in one piece. The reader must take some bytes in every
    ``limits.idle_body_time`` and keep up the minimum body rate.
    """

    __slots__ = ()

    def begin(self, size: int, now: float, client: Client) -> None:
        """Start waiting for ``client`` to take ``size`` bytes, and count them."""
        self._admission.bytes += size - self.size
        super().begin(size, now, client)

    def grow(self, size: int) -> None:
        """Add ``size`` bytes."""
        self._admission.bytes += size
        self.size += size
        self._left += size

    def due(self, limits: Limits) -> float:
        """Return the time by which the reader must take more."""
        return body_due(limits, self._since, self._done, self._last)

    def end(self) -> None:
        """Stop waiting and stop counting the bytes."""
        self._admission.bytes -= self.size
        super().end()


class Unreceived(Awaited):
    """A request body that is still arriving.

    The request's account counts its memory as soon as the length is known. Without an announced
    length, as much as has arrived is assumed to be missing.
    """

    __slots__ = ("_sender",)
    _grace: ClassVar = PAUSE  # long-distance connections start slowly

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._sender: Sender | None = None

    def receive(self, size: int, left: int, now: float, sender: Sender) -> None:
        """Record that the body takes ``size`` bytes, of which ``left`` are missing (0 if its
        length is unknown)."""
        if self._sender is None:
            self._sender = sender
            self._begin(size, now)
        self.size, self._done, self._left = size, size - left, left or size
        self._last = now

    def end(self) -> None:
        """Stop waiting."""
        super().end()
        self._sender = None

    def cut_off(self) -> None:
        """Reject the body."""
        if self._sender is not None:
            self._sender.cut_off_sender()


def too_slow() -> GatewayError:
    """Return the error for a body that arrives slowly while memory is short."""
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
