"""Limits on the rate of requests and bytes: pure arithmetic, time is an argument.

Generic cell rate algorithm: a bucket of size ``burst`` that drains at a steady rate is one number,
the time at which it will be empty. There is no timer and no list of past requests.

1. A request is charged to all of its buckets, or, if one of them has no room, to none.
2. A request larger than a whole bucket passes when the bucket is empty, and overfills it: the
   average rate is kept, and no request is impossible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from infergate.access.refusals import Reason
from infergate.access.rules import ALL, Granted, Matches, matcher
from infergate.routing.table import model_matcher

MOST: Final = 65_536
"""Buckets that are not empty; beyond that the oldest are dropped. About 20 MB."""
_CLOSE: Final = 1e-6
"""Seconds within which two times count as equal: times are sums of fractions."""
_REMEMBERED: Final = 4096
_LONGEST: Final = 256


@dataclass(frozen=True, slots=True)
class Rate:
    """``amount`` requests or bytes in ``seconds``, and ``burst`` at once."""

    amount: float
    seconds: float
    burst: float


@dataclass(frozen=True, slots=True)
class Limit:
    """``identities`` and ``models`` are patterns as in routes; ``*`` matches all. Requests are
    counted for each identity and each route separately, or for all of them together."""

    who: tuple[str, ...]
    models: tuple[str, ...] = (ALL,)
    each_identity: bool = True
    each_route: bool = True
    requests: Rate | None = None
    bytes: Rate | None = None


class Want(NamedTuple):
    """The charge of a request to a bucket: ``cost`` of the bucket's ``burst``, both in seconds."""

    bucket: str
    cost: float
    room: float


class Full(NamedTuple):
    """The bucket that has no room, by the index of its charge, and the seconds to wait for it."""

    which: int
    wait: float


class Store(Protocol):
    """Where buckets are kept. Raises RateStoreUnavailableError while it cannot be reached."""

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room (rule 1)."""
        ...


class Counting(Protocol):
    """Buckets in this host's memory."""

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room (rule 1)."""
        ...


class StoreAway(Exception):  # noqa: N818 - it says what is wrong
    """The store cannot be reached, and the operator wants requests refused meanwhile."""


def no_room(wants: Sequence[Want], empty: Iterable[float], now: float) -> Full | None:
    """Return the charge that has to wait longest if the buckets will be empty at the times
    ``empty_at``; None if there is room for all."""
    worst: Full | None = None
    for index, ((_, cost, room), empty_time) in enumerate(zip(wants, empty, strict=True)):
        level = empty_time - now
        if level > _CLOSE and level + cost > room + _CLOSE:
            wait = level + cost - room if cost <= room else level
            if worst is None or wait > worst.wait:
                worst = Full(index, wait)
    return worst


class Buckets:
    """Buckets in the memory of this process. An empty bucket is the same as a missing one."""

    def __init__(self) -> None:
        self._empty: Final[dict[str, float]] = {}
        """The time at which each bucket will be empty, the oldest bucket first."""

    def __len__(self) -> int:
        return len(self._empty)

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room."""
        empty = self._empty
        worst = no_room(wants, [empty.get(bucket, now) for bucket, _, _ in wants], now)
        if worst is not None:
            return worst
        for bucket, cost, _ in wants:
            empty[bucket] = max(empty.pop(bucket, 0.0), now) + cost
        if len(empty) > MOST:
            self._sweep(now)
        return None

    def _sweep(self, now: float) -> None:
        """Drop the empty buckets and, if that frees too few, the oldest quarter."""
        empty = self._empty
        for bucket in [bucket for bucket, empty_time in empty.items() if empty_time <= now]:
            del empty[bucket]
        if len(empty) > MOST * 3 // 4:
            for bucket in list(empty)[: len(empty) - MOST * 3 // 4]:
                del empty[bucket]


class InMemory:
    """A store on this host, which is always available."""

    def __init__(self, buckets: Counting) -> None:
        self.buckets: Final = buckets

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room."""
        return self.buckets.fill(wants, now)


class _Falls(NamedTuple):
    """The charges of all requests with the same identity, model and route: for one request or, in
    buckets that count bytes, for one byte."""

    wants: Sequence[Want]
    reasons: Sequence[Reason]

    def of(self, size: int) -> Sequence[Want]:
        """Return the charges of a request of ``size`` bytes."""
        if Reason.BYTES not in self.reasons:
            return self.wants
        return [
            Want(want.bucket, want.cost * size, want.room) if reason is Reason.BYTES else want
            for want, reason in zip(self.wants, self.reasons, strict=True)
        ]


class _Bound:
    """A limit with its patterns compiled."""

    def __init__(self, number: int, limit: Limit) -> None:
        self._who: Final[Matches] = matcher(limit.who)
        self._models: Final[Matches] = matcher(limit.models, model_matcher)
        self._limit: Final = limit
        self._number: Final = number

    def wants(self, identity: str, model: str, route: str) -> Iterator[tuple[Reason, Want]]:
        """Yield the charges of a request."""
        limit = self._limit
        if not (self._who(identity) and self._models(model)):
            return
        identity_part = identity if limit.each_identity else ""
        route_part = route if limit.each_route else ""
        name = f"{self._number}|{len(identity_part)}:{identity_part}|{route_part}"
        for reason, rate in ((Reason.REQUESTS, limit.requests), (Reason.BYTES, limit.bytes)):
            if rate is not None:
                unit_seconds = rate.seconds / rate.amount
                yield (
                    reason,
                    Want(f"{reason.value}|{name}", unit_seconds, rate.burst * unit_seconds),
                )


class Rates:
    """All rate limits of a configuration."""

    def __init__(self, limits: Sequence[Limit], store: Store) -> None:
        self._limits: Final = [_Bound(index, limit) for index, limit in enumerate(limits)]
        self._store: Final = store
        self._known: Final[dict[tuple[str, str, str], _Falls]] = {}

    async def take(
        self, permit: Granted, model: str, route: str, size: int, now: float
    ) -> tuple[Reason, float] | None:
        """Charge a request of ``size`` bytes to ``model``, which takes ``route``. Return None if it
        may pass, else the kind of limit that is exceeded and the seconds to wait. Raises
        RateStoreUnavailableError."""
        plan = self._falls(permit.identity, model, route)
        if not plan.wants:
            return None
        exceeded = await self._store.take(plan.of(size), now)
        if exceeded is None:
            return None
        return plan.reasons[exceeded.which], exceeded.wait

    def _falls(self, identity: str, model: str, route: str) -> _Falls:
        key = identity, model, route
        plan = self._known.get(key)
        if plan is None:
            charges = [charge for limit in self._limits for charge in limit.wants(*key)]
            plan = _Falls(
                [bucket_charge for _, bucket_charge in charges], [reason for reason, _ in charges]
            )
            if len(model) <= _LONGEST:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = plan
        return plan
