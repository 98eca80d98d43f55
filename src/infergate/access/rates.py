"""How often each may ask, and how much: pure arithmetic, time is an argument.

*Strategy.* The generic cell rate algorithm: a bucket of ``burst`` that empties at a steady rate is
one number, the time at which it will be empty. No timer, no list of what came when.

*Rule 1.* All buckets that a request falls into have room for it, or none is filled.
*Rule 2.* What is larger than a whole bucket passes when that is empty, and fills it beyond the
brim: the rate is kept, and no request is impossible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from infergate.access.refusals import Reason
from infergate.access.rules import ALL, Granted, Matches, matcher
from infergate.routing.table import model_matcher

MOST: Final = 65_536
"""Buckets that are not empty; beyond, the oldest is forgotten. About 20 MB."""
_CLOSE: Final = 1e-6
"""Seconds that are no difference: times are sums of fractions."""
_REMEMBERED: Final = 4096
_LONGEST: Final = 256


@dataclass(frozen=True, slots=True)
class Rate:
    """``amount`` in ``seconds``, and ``burst`` at once: requests or bytes."""

    amount: float
    seconds: float
    burst: float


@dataclass(frozen=True, slots=True)
class Limit:
    """``who`` and ``models`` are patterns as routes have them; ``*`` is everybody. It is
    counted for each identity and each route, or for all of them together."""

    who: tuple[str, ...]
    models: tuple[str, ...] = (ALL,)
    each_identity: bool = True
    each_route: bool = True
    requests: Rate | None = None
    bytes: Rate | None = None


class Want(NamedTuple):
    """What a request takes of a bucket: ``cost`` seconds of ``room``."""

    bucket: str
    cost: float
    room: float


class Full(NamedTuple):
    """Which of several wants has no room, and for how many seconds."""

    which: int
    wait: float


class Store(Protocol):
    """Where buckets are. Raises StoreAway where it is not there."""

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """Rule 1. None: they were taken."""
        ...


class Counting(Protocol):
    """Buckets in memory."""

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """See Store."""
        ...


class StoreAway(Exception):  # noqa: N818 - it says what is wrong
    """Nobody counts now, and the operator wants none let in then."""


def no_room(wants: Sequence[Want], empty: Iterable[float], now: float) -> Full | None:
    """Which of ``wants`` has to wait longest, where their buckets will be ``empty`` at these times;
    None: there is room for all."""
    worst: Full | None = None
    for index, ((_, cost, room), at) in enumerate(zip(wants, empty, strict=True)):
        level = at - now
        if level > _CLOSE and level + cost > room + _CLOSE:
            wait = level + cost - room if cost <= room else level
            if worst is None or wait > worst.wait:
                worst = Full(index, wait)
    return worst


class Buckets:
    """In the memory of this process. One that is empty is as one that is not there."""

    def __init__(self) -> None:
        self._empty: Final[dict[str, float]] = {}
        """When each will be, the oldest first."""

    def __len__(self) -> int:
        return len(self._empty)

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """See Store."""
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
        """Forget those that are empty; where there are few of them, the oldest quarter."""
        empty = self._empty
        for bucket in [bucket for bucket, at in empty.items() if at <= now]:
            del empty[bucket]
        if len(empty) > MOST * 3 // 4:
            for bucket in list(empty)[: len(empty) - MOST * 3 // 4]:
                del empty[bucket]


class InMemory:
    """A Store that is always there."""

    def __init__(self, buckets: Counting) -> None:
        self.buckets: Final = buckets

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """See Store."""
        return self.buckets.fill(wants, now)


class _Falls(NamedTuple):
    """The buckets that requests of one kind fall into: what each takes for one request or, of those
    that count bytes, for one byte."""

    wants: Sequence[Want]
    reasons: Sequence[Reason]

    def of(self, size: int) -> Sequence[Want]:
        """What a request of ``size`` bytes takes."""
        if Reason.BYTES not in self.reasons:
            return self.wants
        return [
            Want(want.bucket, want.cost * size, want.room) if reason is Reason.BYTES else want
            for want, reason in zip(self.wants, self.reasons, strict=True)
        ]


class _Bound:
    """A limit, ready to be asked."""

    def __init__(self, number: int, limit: Limit) -> None:
        self._who: Final[Matches] = matcher(limit.who)
        self._models: Final[Matches] = matcher(limit.models, model_matcher)
        self._limit: Final = limit
        self._number: Final = number

    def wants(self, identity: str, model: str, route: str) -> Iterator[tuple[Reason, Want]]:
        """The buckets of a request."""
        limit = self._limit
        if not (self._who(identity) and self._models(model)):
            return
        who = identity if limit.each_identity else ""
        where = route if limit.each_route else ""
        name = f"{self._number}|{len(who)}:{who}|{where}"
        for reason, rate in ((Reason.REQUESTS, limit.requests), (Reason.BYTES, limit.bytes)):
            if rate is not None:
                one = rate.seconds / rate.amount
                yield reason, Want(f"{reason.value}|{name}", one, rate.burst * one)


class Rates:
    """All limits of a configuration."""

    def __init__(self, limits: Sequence[Limit], store: Store) -> None:
        self._limits: Final = [_Bound(number, each) for number, each in enumerate(limits)]
        self._store: Final = store
        self._known: Final[dict[tuple[str, str, str], _Falls]] = {}

    async def take(
        self, permit: Granted, model: str, route: str, size: int, now: float
    ) -> tuple[Reason, float] | None:
        """A request of ``size`` bytes to ``model``, which takes ``route``. None: it may come; else
        what there is too much of, and the seconds until there is room. Raises StoreAway."""
        falls = self._falls(permit.identity, model, route)
        if not falls.wants:
            return None
        full = await self._store.take(falls.of(size), now)
        if full is None:
            return None
        return falls.reasons[full.which], full.wait

    def _falls(self, identity: str, model: str, route: str) -> _Falls:
        key = identity, model, route
        known = self._known.get(key)
        if known is None:
            found = [each for limit in self._limits for each in limit.wants(*key)]
            known = _Falls([want for _, want in found], [reason for reason, _ in found])
            if len(model) <= _LONGEST:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = known
        return known
