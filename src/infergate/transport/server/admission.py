"""Admission control: limits on requests, memory and streams over all listeners of a process."""

from __future__ import annotations

import math
import time
from operator import itemgetter
from typing import ClassVar, Final, Protocol

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import IN_FLIGHT_BYTES, MIN_ACCOUNTED_BYTES, OPTIONAL_BYTES
from infergate.transport.net.timer import body_deadline

MAX_STREAMS = 1024
"""Maximum number of streams per process. Streams may stay open for hours."""
RESERVED_PART: Final = 16
"""The part of ``limits.in_flight_bytes`` that is reserved for short bodies, as a divisor."""
OPTIONAL_PART: Final = 4
"""The part of ``limits.in_flight_bytes`` that optional work may use, as a divisor. Optional work is
recording, the payload log, and copies for mirrors and comparisons. New optional work starts only
while at most half of this part is in use, so that started work can grow and finish."""
READER_GRACE: Final = 1.0  # grace period of a reader when memory is short, in seconds
MAX_PAUSE: Final = 2.0
"""Seconds without progress after which a client counts as stalled. A sender also has this much time
to start."""
CHECK_INTERVAL: Final = 0.5  # seconds between two searches for slow clients
_RETRY_AFTER: Final = 1.0


class Admission:
    """Counts requests in progress, the memory that they hold, unsent responses, and streams.
    Streams are counted separately from requests, because a thousand idle health watches must not
    block inferences."""

    def __init__(self, limits: Limits) -> None:
        self.apply_limits(limits)
        self.requests = 0
        self.bytes = 0
        """The total bytes of requests (arriving bodies count with their announced lengths),
        optional work and unsent responses."""
        self.optional_bytes = 0
        """The part of ``bytes`` that optional work holds."""
        self.transfers: Final[dict[PendingTransfer, None]] = {}
        """Transfers that wait for a client to read a response or to send a body."""
        self._checked_at = -math.inf
        self.streams = 0

    def apply_limits(self, limits: Limits) -> None:
        """Apply ``limits`` to new requests, and to further memory of requests that are already
        admitted."""
        self._max_requests = limits.in_flight
        self._max_bytes = limits.in_flight_bytes
        self._patience = limits.idle_body_time

    def admit(self, size: int) -> None:
        """Count a new request of ``size`` bytes. Raises OVERLOADED, in which case the request is
        not counted."""
        if self.requests >= self._max_requests:
            raise _limit_reached(f"{self._max_requests} requests", "in_flight")
        if size <= MIN_ACCOUNTED_BYTES and self.bytes + size <= self._max_bytes:
            self.bytes += size  # the same as `grow` for a short request
        else:
            self.grow(size)
        self.requests += 1

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes of a request. Raises OVERLOADED, in which case the bytes are
        not counted."""
        allowed = self._max_bytes
        if size > MIN_ACCOUNTED_BYTES:
            allowed -= allowed // RESERVED_PART
        if self.bytes + size > allowed:
            self._disconnect_slow()
            raise _limit_reached(f"{self._max_bytes} bytes in memory", IN_FLIGHT_BYTES)
        self.bytes += size

    def grow_optional(self, size: int) -> None:
        """Count ``size`` more bytes of optional work. Raises OVERLOADED, in which case the bytes
        are not counted."""
        allowed = self._max_bytes // OPTIONAL_PART
        if self.optional_bytes + size > allowed:
            raise _limit_reached(f"{allowed} bytes of optional work in memory", OPTIONAL_BYTES)
        self.grow(size)
        self.optional_bytes += size

    def start_optional(self, size: int) -> None:
        """Count ``size`` bytes of new optional work. Raises OVERLOADED, in which case the bytes are
        not counted."""
        allowed = self._max_bytes // OPTIONAL_PART // 2
        if self.optional_bytes > allowed:
            raise _limit_reached(f"{allowed} bytes of earlier optional work", OPTIONAL_BYTES)
        self.grow_optional(size)

    def _disconnect_slow(self) -> None:
        """Disconnect slow clients until a quarter of the memory is free, in descending order of
        held memory multiplied by remaining time."""
        now = time.monotonic()
        if now < self._checked_at + CHECK_INTERVAL:
            return
        self._checked_at = now
        slow = []
        for transfer in self.transfers:
            if transfer.size > MIN_ACCOUNTED_BYTES:
                if transfer.is_slow(now, self._patience):
                    slow.append(
                        (transfer.size * transfer.seconds_left(now), transfer.size, transfer)
                    )
                else:
                    transfer.restart_rate(now)
        excess = self.bytes - self._max_bytes * 3 // 4
        for _, _, transfer in sorted(slow, key=itemgetter(0, 1), reverse=True):
            if excess <= 0:
                return
            excess -= transfer.size
            transfer.abort()

    def admit_stream(self) -> None:
        """Count a new stream. Raises OVERLOADED, in which case the stream is not counted."""
        if self.streams >= MAX_STREAMS:
            raise _limit_reached(f"{MAX_STREAMS} streams", "transport.server.admission.MAX_STREAMS")
        self.streams += 1

    def release_stream(self) -> None:
        """Stop counting a stream."""
        self.streams -= 1


class RequestAccount:
    """The memory account of one request. Only the first call of ``release`` has an effect."""

    __slots__ = ("_admission", "_bytes", "is_admitted")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self.is_admitted = False  # whether the request is admitted and not released

    def admit(self, size: int) -> None:
        """Admit the request with ``size`` bytes. Raises OVERLOADED."""
        self._admission.admit(size)
        self.is_admitted = True
        self._bytes = size

    def count_body(self, size: int) -> None:
        """Count a body of ``size`` bytes, and admit the request if it is not admitted yet. Raises
        OVERLOADED."""
        if not self.is_admitted:
            self._admission.admit(size)
            self.is_admitted = True
            self._bytes = size
        elif size > self._bytes:
            self._admission.grow(size - self._bytes)
            self._bytes = size

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes. Raises OVERLOADED at the limit, unless only this request and
        optional work hold memory."""
        if self.is_admitted:
            admission = self._admission
            if self._bytes == admission.bytes - admission.optional_bytes:
                admission.bytes += size
            else:
                admission.grow(size)
            self._bytes += size

    def shrink(self, size: int) -> None:
        """Subtract ``size`` bytes."""
        if self.is_admitted:
            self._admission.bytes -= size
            self._bytes -= size

    def detach(self, size: int) -> RequestAccount:
        """Move ``size`` bytes to a new account of the same class, which has no request. The owner
        of the new account must call ``close`` instead of ``release``."""
        account: RequestAccount = type(self)(self._admission)
        if self.is_admitted:
            self._bytes -= size
            account.is_admitted, account._bytes = True, size
        return account

    def detach_optional(self, size: int) -> OptionalAccount:
        """Count ``size`` bytes in a new account of optional work, even if the request has ended.
        Raises OVERLOADED."""
        account = OptionalAccount(self._admission)
        account.start(size)
        return account

    def close(self) -> None:
        """Close a detached account."""
        self.shrink(self._bytes)
        self.is_admitted = False

    def release(self) -> None:
        """Release the request if it was admitted."""
        if self.is_admitted:
            self.is_admitted = False
            self._admission.requests -= 1
            self._admission.bytes -= self._bytes


class OptionalAccount(RequestAccount):
    """A detached account of optional work, which also counts in ``Admission.optional_bytes``."""

    __slots__ = ()

    def start(self, size: int) -> None:
        """Start the work with ``size`` bytes. Raises OVERLOADED."""
        self._admission.start_optional(size)
        self.is_admitted = True
        self._bytes = size

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes. Raises OVERLOADED."""
        if self.is_admitted:
            self._admission.grow_optional(size)
            self._bytes += size

    def shrink(self, size: int) -> None:
        if self.is_admitted:
            self._admission.optional_bytes -= size
            super().shrink(size)


def shutting_down() -> GatewayError:
    """Return the error for requests that are still in progress when the grace period ends."""
    return GatewayError(Kind.OVERLOADED, "the gateway is shutting down", retry_after=_RETRY_AFTER)


class ResponseReceiver(Protocol):
    """A client that has not read all of its response."""

    def unread_bytes(self) -> int:
        """Return the number of bytes that the client has not read yet."""
        ...

    def disconnect_soon(self) -> None:
        """Disconnect the client soon after this call returns."""
        ...


class BodySender(Protocol):
    """A client that is sending a body."""

    def reject_slow_body(self) -> None:
        """Reject the body soon after this call returns, if the body is still slow."""
        ...


class PendingTransfer:
    """Memory that is held from ``start`` to ``finish``, while a client reads or sends a message.
    When memory is short, ``admission`` disconnects the slowest clients. Times are on the loop's
    clock. The rate is measured from a point in time that moves forward while memory is short, so
    that a client that becomes slow is detected even after a fast start."""

    _grace: ClassVar = READER_GRACE

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        # The client is set only during a transfer, so that no reference cycle remains.
        self._client: ResponseReceiver | None = None
        self.size = self._remaining = self._transferred = self._rate_transferred = 0
        self._started_at = self._last_progress = self._rate_since = 0.0

    def start(self, size: int, now: float, client: ResponseReceiver) -> None:
        """Start waiting for ``client`` to read ``size`` bytes."""
        self._client = client
        self._start(size, now)

    def _start(self, size: int, now: float) -> None:
        self.size = self._remaining = size
        self._transferred = self._rate_transferred = 0
        self._started_at = self._last_progress = self._rate_since = now
        self._admission.transfers[self] = None

    def set_remaining(self, size: int, now: float) -> None:
        """Record that ``size`` bytes have not been transferred yet."""
        if size != self._remaining:
            self._last_progress = now
            self._transferred += self._remaining - size
            self._remaining = size

    def finish(self) -> None:
        self._admission.transfers.pop(self, None)
        self._client = None
        self.size = self._remaining = 0

    def seconds_left(self, now: float) -> float:
        """Return the seconds that the client needs for the rest of the transfer. The result is
        infinite if the client has paused, and 0 if the rate is unknown."""
        if not self.size:
            return 0.0
        if self._client is not None:
            self.set_remaining(self._client.unread_bytes(), now)
        elapsed, transferred = now - self._rate_since, self._transferred - self._rate_transferred
        if elapsed < (self._grace if self._rate_since == self._started_at else MAX_PAUSE):
            return 0.0
        if now - self._last_progress >= MAX_PAUSE or transferred <= 0:
            return math.inf if self._remaining else 0.0
        return self._remaining * elapsed / transferred

    def is_slow(self, now: float, patience: float) -> bool:
        """Return whether the client needs more than ``patience`` seconds for the rest of the
        transfer."""
        return self.seconds_left(now) > patience

    def restart_rate(self, now: float) -> None:
        """Measure the rate from ``now``, unless the measurement began recently."""
        if now - self._rate_since >= MAX_PAUSE:
            self._rate_since, self._rate_transferred = now, self._transferred

    def abort(self) -> None:
        """Disconnect the client."""
        if self._client is not None:
            self._client.disconnect_soon()


class UnsentResponse(PendingTransfer):
    """The unsent part of a response that waits for a slow reader. The response counts as memory,
    but is never refused. All its bytes count until the last byte is sent, because its buffers
    are freed only then. The reader must read at least once per ``limits.idle_body_time``, and at
    least at the minimum body rate."""

    def start(self, size: int, now: float, client: ResponseReceiver) -> None:
        """Start waiting for ``client`` to read ``size`` bytes, and count the bytes."""
        self._admission.bytes += size - self.size
        super().start(size, now, client)

    def grow(self, size: int) -> None:
        self._admission.bytes += size
        self.size += size
        self._remaining += size

    def deadline(self, limits: Limits) -> float:
        """Return the time by which the reader must read more."""
        return body_deadline(limits, self._started_at, self._transferred, self._last_progress)

    def finish(self) -> None:
        """Stop waiting and stop counting the bytes."""
        self._admission.bytes -= self.size
        super().finish()


class IncomingBody(PendingTransfer):
    """A request body that is still arriving. The request's account counts its memory. If no length
    was announced, the missing part is assumed to be as long as the received part."""

    _grace: ClassVar = MAX_PAUSE  # long-distance connections start slowly

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self._sender: BodySender | None = None

    def update(self, size: int, missing: int, now: float, sender: BodySender) -> None:
        """Record that ``missing`` of the body's ``size`` bytes have not arrived. ``missing`` is 0
        if the number is unknown."""
        if self._sender is None:
            self._sender = sender
            self._start(size, now)
        self.size, self._transferred, self._remaining = size, size - missing, missing or size
        self._last_progress = now

    def finish(self) -> None:
        super().finish()
        self._sender = None

    def abort(self) -> None:
        """Reject the body."""
        if self._sender is not None:
            self._sender.reject_slow_body()


def too_slow() -> GatewayError:
    """Return the error for a body that arrives slowly while memory is short."""
    public = "the request arrived too slowly while the gateway's memory was short"
    return GatewayError(Kind.OVERLOADED, public, retry_after=_RETRY_AFTER, limit=IN_FLIGHT_BYTES)


def _limit_reached(limit_text: str, limit: str) -> GatewayError:
    public = f"the gateway has reached its limit of {limit_text}"
    return GatewayError(Kind.OVERLOADED, public, retry_after=_RETRY_AFTER, limit=limit)
