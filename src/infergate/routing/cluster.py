"""Chooses among the endpoints of one backend.

1. Endpoints that are down (``health``) or ejected (``outliers``) get no requests while other
   endpoints are available. There are two exceptions: the requests of a sequence go to the
   sequence's owner, and a further attempt of a request prefers any endpoint that the request has
   not tried. The only endpoint of a backend is always used.
2. Panic: if no endpoint is available, or the share of available endpoints is below
   ``panic_threshold``, all endpoints are used, because the checks are probably wrong (Envoy's panic
   threshold).
3. The last available endpoint is never ejected.
4. Slow start: the weight of a new or readmitted endpoint grows from 10 % to 100 % of its configured
   weight over a window.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, TypeVar

from infergate.core.attempt_outcome import AttemptOutcome
from infergate.core.sequences import SequenceKey
from infergate.routing.affinity import hash_key, rendezvous_owner
from infergate.routing.balance import BalancingPolicy, CandidateTable, LeastRequest, RandomSource
from infergate.routing.health import EndpointHealth
from infergate.routing.outliers import DEFAULT_RULE, OutlierRule, OutlierState

_MIN_SHARE: Final = 0.1  # Envoy's min_weight_percent
_SLOW_START_STEPS: Final = 20
"""Number of steps in which the weight of an endpoint grows within the window."""


class ClusterMember:
    """An endpoint and its state. ``name`` is the same in all gateways, and ``weight`` is relative
    to other endpoints."""

    __slots__ = (
        "active",
        "failures",
        "health",
        "name",
        "outlier",
        "slow_start_since",
        "successes",
        "weight",
    )

    def __init__(self, name: bytes, weight: float, health: EndpointHealth) -> None:
        self.name: Final = name
        self.weight: Final = weight
        self.health: Final = health
        self.outlier: Final = OutlierState()
        self.active = 0
        self.successes = 0
        self.failures = 0
        self.slow_start_since = -inf
        """The start time of slow start, or ``-inf`` if slow start has never begun."""

    def record_success(self) -> None:
        self.active -= 1
        self.successes += 1
        self.outlier.consecutive_failures = 0


M = TypeVar("M", bound=ClusterMember)


@dataclass(frozen=True, slots=True)
class ClusterRule:
    """The settings of a cluster. ``slow_start_seconds`` is the slow-start window; 0 disables slow
    start. ``panic_threshold`` is a share of the endpoints, from 0 to 1."""

    outliers: OutlierRule = field(default=DEFAULT_RULE)
    slow_start_seconds: float = 0.0
    panic_threshold: float = 0.0


class Cluster(Generic[M]):
    """Chooses among one or more ``members``."""

    def __init__(
        self,
        members: Sequence[M],
        policy: BalancingPolicy[M],
        random: RandomSource,
        rule: ClusterRule,
    ) -> None:
        self.members: Sequence[M] = members
        self._policy: Final = policy
        self._least_request: Final = LeastRequest[M](random)
        self._rule: Final = rule
        self._table = CandidateTable(members)
        self._table_valid_until = -inf

    # ---- members

    def replace_members(self, members: Sequence[M], now: float, *, slow_start: bool = True) -> None:
        """Replace the members with ``members``, which must not be empty. With ``slow_start``, new
        members begin a slow start."""
        old_ids = set(map(id, self.members))
        for member in members if slow_start else ():
            if id(member) not in old_ids:
                member.slow_start_since = now
        self.members = members
        self._table_valid_until = -inf

    # ---- choosing

    def choose(self, now: float, tried: Collection[M] = (), key: str = "") -> M:
        """Return the member for the next attempt, if possible a member that is not in ``tried``,
        and count the attempt as active."""
        members = self.members
        if len(members) == 1:
            chosen = members[0]
        else:
            table = self._table if now < self._table_valid_until else self._rebuild_table(now)
            chosen = (
                self._choose_untried(table, tried, key) if tried else self._policy.pick(table, key)
            )
        chosen.active += 1
        return chosen

    def _choose_untried(self, table: CandidateTable[M], tried: Collection[M], key: str) -> M:
        """Prefer every untried member, even if it is unavailable, to the members in ``tried``."""
        for pool in (table.members, self.members):
            others = [member for member in pool if member not in tried]
            if others:
                if key:
                    return rendezvous_owner(key, others)
                return self._least_request.pick(CandidateTable(others))
        return self._policy.pick(table, key)

    def choose_owner(self, sequence: SequenceKey) -> M:
        """Return the owner of ``sequence``, regardless of its state
        (docs/decisions/0013-sequences-by-hash.md), and count the attempt as active."""
        owner = rendezvous_owner(hash_key(sequence), self.members)
        owner.active += 1
        return owner

    def available(self, now: float) -> Sequence[M]:
        """Return the members that are neither down nor ejected."""
        return [
            member
            for member in self.members
            if member.health.is_up and member.outlier.ejected_until <= now
        ]

    def _rebuild_table(self, now: float) -> CandidateTable[M]:
        """Build the table of candidates, and compute the time until which it is valid."""
        rule, members = self._rule, self.members
        candidates = self.available(now)
        if not candidates or len(candidates) < rule.panic_threshold * len(members):
            candidates = members
        ejection_ends = (member.outlier.ejected_until for member in members)
        valid_until = min((end for end in ejection_ends if end > now), default=inf)
        growing = False
        shares = []
        for candidate in candidates:
            share = self._slow_start_share(candidate, now)
            growing |= share < 1.0
            shares.append(share * candidate.weight)
        if growing:
            valid_until = min(valid_until, now + rule.slow_start_seconds / _SLOW_START_STEPS)
        is_even = min(shares) == max(shares)
        self._table = CandidateTable(candidates, None if is_even else shares)
        self._table_valid_until = valid_until
        return self._table

    def _slow_start_share(self, member: M, now: float) -> float:
        window = self._rule.slow_start_seconds
        since = max(member.slow_start_since, member.outlier.ejected_until)
        if not window or since == -inf or now - since >= window:
            return 1.0
        return max(_MIN_SHARE, (now - since) / window)

    # ---- outcomes and checks

    def record_outcome(self, member: M, outcome: AttemptOutcome, now: float) -> bool:
        """Record the end of an attempt on ``member``. Return whether the member was ejected."""
        if outcome is AttemptOutcome.OK:
            member.record_success()
            return False
        member.active -= 1
        if outcome is AttemptOutcome.UNKNOWN:
            return False
        member.failures += 1
        outlier, rule = member.outlier, self._rule.outliers
        outlier.record_failure(
            is_unreachable=outcome is AttemptOutcome.NOT_CONNECTED,
            is_ambiguous=outcome is AttemptOutcome.BROKEN,
        )
        return outlier.is_certain(rule) and self.eject_suspect(member, now, by_check=False)

    def is_suspect(self, member: M, now: float) -> bool:
        """Return whether a failed check would eject ``member``."""
        members, rule = self.members, self._rule.outliers
        if not member.outlier.is_ejection_due(rule, now):
            return False
        ejected = sum(1 for candidate in members if candidate.outlier.ejected_until > now)
        return ejected < max(1, int(rule.max_share * len(members))) and any(
            candidate is not member for candidate in self.available(now)
        )

    def eject_suspect(self, member: M, now: float, *, by_check: bool) -> bool:
        """Eject ``member`` if it is suspect. ``by_check`` means that a check of the member failed.
        Return whether the member was ejected."""
        if not self.is_suspect(member, now):
            return False
        member.outlier.eject(self._rule.outliers, now, by_check=by_check)
        self._table_valid_until = -inf
        return True

    def record_check(self, member: M, now: float, *, succeeded: bool) -> bool:
        """Record a health check of ``member``. Return whether the check changed the member's
        availability."""
        changed = member.health.record_check(succeeded=succeeded)
        was_readmitted = member.outlier.record_check(now, member.health.rise, succeeded=succeeded)
        if was_readmitted or (changed and succeeded):
            member.outlier.readmit(now)
            member.slow_start_since = now
        if changed or was_readmitted:
            self._table_valid_until = -inf
        return changed or was_readmitted
