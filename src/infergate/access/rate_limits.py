"""Limits on the rate of requests and bytes. This module has no I/O; time is an argument.

The limits use the generic cell rate algorithm: a bucket of size ``burst`` drains at a steady rate,
and is stored as one number, the time at which it will be empty. There is no timer and no list of
past requests.

1. A request is charged to all of its buckets. If any bucket is too full, nothing is charged.
2. A request larger than a bucket passes when the bucket is empty, and overfills the bucket. Large
   requests therefore remain possible, and the average rate still holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from infergate.access.rejection import RejectionReason, rate_exceeded
from infergate.access.rules import ANY, RulePermit, TextPredicate, matcher
from infergate.core.bounded_cache import BoundedCache
from infergate.routing.table import model_matcher

MAX_BUCKETS: Final = 65_536
"""Maximum number of buckets, about 20 MB in total. When it is exceeded, empty buckets are dropped
first, and then the least recently charged buckets, until three quarters of this number remain."""
_TOLERANCE_SECONDS: Final = 1e-6
"""Times that differ by less than this count as equal, because sums of floats are inexact."""
_MAX_CACHED_PLANS: Final = 4096
_MAX_CACHED_MODEL_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Rate:
    """``amount`` requests or bytes in ``seconds``, with bursts of up to ``burst``."""

    amount: float
    seconds: float
    burst: float


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limits on the requests and bytes of matching identities and models. ``identities`` and
    ``models`` are patterns as in routes; ``*`` matches everything. With ``each_identity`` and
    ``each_route``, each identity and each route has its own buckets."""

    identities: tuple[str, ...]
    models: tuple[str, ...] = (ANY,)
    each_identity: bool = True
    each_route: bool = True
    requests: Rate | None = None
    bytes: Rate | None = None


class BucketCharge(NamedTuple):
    """The charge of a request to a bucket. ``cost`` and the bucket's ``burst`` are in seconds."""

    bucket: str
    cost: float
    burst: float


class ExceededLimit(NamedTuple):
    """A bucket that is too full for its charge: the index of the charge, and the seconds until the
    bucket has enough capacity."""

    charge_index: int
    wait_seconds: float


class RateStore(Protocol):
    """Buckets in an external service, such as Redis."""

    async def charge(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        """Charge all buckets and return None, or charge nothing and return the exceeded limit with
        the longest wait (rule 1). Raises AccessRejected if the store is unavailable and the
        configured fallback is to reject requests."""
        ...


class RateBuckets(Protocol):
    """Buckets in the memory of this host."""

    def fill(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        """Charge all buckets and return None, or charge nothing and return the exceeded limit with
        the longest wait (rule 1)."""
        ...


def find_exceeded(
    charges: Sequence[BucketCharge], empty_at: Iterable[float], now: float
) -> ExceededLimit | None:
    """Return the exceeded limit with the longest wait, or None if no charge has to wait.
    ``empty_at`` are the times at which the buckets will be empty, without the charges."""
    worst: ExceededLimit | None = None
    for index, ((_, cost, capacity), empty_time) in enumerate(zip(charges, empty_at, strict=True)):
        level = empty_time - now
        if level > _TOLERANCE_SECONDS and level + cost > capacity + _TOLERANCE_SECONDS:
            wait = level + cost - capacity if cost <= capacity else level
            if worst is None or wait > worst.wait_seconds:
                worst = ExceededLimit(index, wait)
    return worst


class LocalBuckets:
    """Buckets in the memory of this process. An empty bucket and a missing bucket are
    equivalent."""

    def __init__(self) -> None:
        self._empty_at: Final[dict[str, float]] = {}
        """The time at which each bucket will be empty. The least recently charged bucket is
        first."""

    def __len__(self) -> int:
        return len(self._empty_at)

    def fill(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        empty = self._empty_at
        worst = find_exceeded(charges, [empty.get(bucket, now) for bucket, _, _ in charges], now)
        if worst is not None:
            return worst
        for bucket, cost, _ in charges:
            empty[bucket] = max(empty.pop(bucket, 0.0), now) + cost
        if len(empty) > MAX_BUCKETS:
            self._drop_empty(now)
        return None

    def _drop_empty(self, now: float) -> None:
        empty = self._empty_at
        for bucket in [bucket for bucket, empty_time in empty.items() if empty_time <= now]:
            del empty[bucket]
        if len(empty) > MAX_BUCKETS * 3 // 4:
            for bucket in list(empty)[: len(empty) - MAX_BUCKETS * 3 // 4]:
                del empty[bucket]


class _ChargePlan(NamedTuple):
    """The charges of all requests with the same identity, model and route. A charge counts one
    request or, in a bucket for bytes, one byte."""

    charges: Sequence[BucketCharge]
    reasons: Sequence[RejectionReason]

    def check(self, exceeded: ExceededLimit | None) -> None:
        """Raise AccessRejected if a limit is exceeded."""
        if exceeded is not None:
            raise rate_exceeded(self.reasons[exceeded.charge_index], exceeded.wait_seconds)

    def charges_for(self, size: int) -> Sequence[BucketCharge]:
        if RejectionReason.BYTES not in self.reasons:
            return self.charges
        return [
            BucketCharge(charge.bucket, charge.cost * size, charge.burst)
            if reason is RejectionReason.BYTES
            else charge
            for charge, reason in zip(self.charges, self.reasons, strict=True)
        ]


class _CompiledLimit:
    def __init__(self, number: int, limit: RateLimit) -> None:
        self._matches_identity: Final[TextPredicate] = matcher(limit.identities)
        self._matches_model: Final[TextPredicate] = matcher(limit.models, model_matcher)
        self._limit: Final = limit
        self._number: Final = number

    def charges(
        self, identity: str, model: str, route: str
    ) -> Iterator[tuple[RejectionReason, BucketCharge]]:
        limit = self._limit
        if not (self._matches_identity(identity) and self._matches_model(model)):
            return
        identity_part = identity if limit.each_identity else ""
        route_part = route if limit.each_route else ""
        name = f"{self._number}|{len(identity_part)}:{identity_part}|{route_part}"
        for reason, rate in (
            (RejectionReason.REQUESTS, limit.requests),
            (RejectionReason.BYTES, limit.bytes),
        ):
            if rate is not None:
                unit_seconds = rate.seconds / rate.amount
                yield (
                    reason,
                    BucketCharge(f"{reason.value}|{name}", unit_seconds, rate.burst * unit_seconds),
                )


class RateLimits:
    """All rate limits of a configuration. Requests are counted in ``store`` or, if it is None, in
    ``buckets``."""

    def __init__(
        self, limits: Sequence[RateLimit], buckets: RateBuckets, store: RateStore | None = None
    ) -> None:
        self._limits: Final = [_CompiledLimit(index, limit) for index, limit in enumerate(limits)]
        self.buckets: Final = buckets
        self._store: Final = store
        self.is_local: Final = store is None
        """Whether the rates are counted on this host."""
        self._plans: Final = BoundedCache[tuple[str, str, str], _ChargePlan](_MAX_CACHED_PLANS)

    async def charge(
        self, permit: RulePermit, model: str, route: str, size: int, now: float
    ) -> None:
        """Charge a request of ``size`` bytes to ``model`` on ``route``. Raises AccessRejected."""
        if self._store is None:
            self.charge_now(permit, model, route, size, now)
            return
        plan = self._plan(permit.identity, model, route)
        if plan.charges:
            plan.check(await self._store.charge(plan.charges_for(size), now))

    def charge_now(self, permit: RulePermit, model: str, route: str, size: int, now: float) -> None:
        """Charge like ``charge``, but without awaiting. Rates must be counted on this host
        (``is_local``)."""
        plan = self._plan(permit.identity, model, route)
        if plan.charges:
            plan.check(self.buckets.fill(plan.charges_for(size), now))

    def _plan(self, identity: str, model: str, route: str) -> _ChargePlan:
        key = identity, model, route
        plan = self._plans.get(key)
        if plan is None:
            charges = [charge for limit in self._limits for charge in limit.charges(*key)]
            plan = _ChargePlan(
                [bucket_charge for _, bucket_charge in charges], [reason for reason, _ in charges]
            )
            if len(model) <= _MAX_CACHED_MODEL_CHARS:
                self._plans[key] = plan
        return plan
