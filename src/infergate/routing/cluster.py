"""The endpoints of one backend, and which of them are available: pure, time is an argument.

1. An endpoint that is down (``health``) or ejected (``outliers``) gets no request while others are
   available.
2. Panic: if no endpoint is available, or fewer than the operator's share of all, all of them are
   used, because it is more likely that the checks are wrong (Envoy's panic threshold).
3. At most a share of all endpoints is ejected at a time, but always at least one may be, and never
   the last available one.
4. Slow start: the share of an endpoint that is new or has come back grows from a tenth to all of it
   over a window.
5. The only endpoint of a backend is used whatever its state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, TypeVar

from infergate.core.outcome import Outcome
from infergate.core.sequences import SequenceName
from infergate.routing.affinity import keeper, sequence_key
from infergate.routing.balance import LeastRequest, Policy, Random, Table
from infergate.routing.health import Health
from infergate.routing.outliers import DEFAULT_RULE, Outlier, OutlierRule

_LEAST_SHARE: Final = 0.1  # Envoy's min_weight_percent
_STEPS: Final = 20
"""How often a share grows within the window."""


class Member:
    """One endpoint. All gateways use the same ``name``; ``weight`` is relative to the other
    endpoints."""

    __slots__ = ("active", "failed", "health", "name", "ok", "outlier", "since", "weight")

    def __init__(self, name: bytes, weight: float, health: Health) -> None:
        self.name: Final = name
        self.weight: Final = weight
        self.health: Final = health
        self.outlier: Final = Outlier()
        self.active = 0
        """Active requests."""
        self.ok = 0
        """Requests that succeeded, in total."""
        self.failed = 0
        """Requests in which the endpoint failed, in total."""
        self.since = -inf
        """When it was added or came back, if its share may still be growing."""

    def served(self) -> None:
        """Record an attempt that succeeded."""
        self.active -= 1
        self.ok += 1
        self.outlier.row = 0


M = TypeVar("M", bound=Member)


@dataclass(frozen=True, slots=True)
class ClusterRule:
    """``slow_start_seconds``: the window of slow start, 0: none. ``panic_threshold``: from 0 to
    1."""

    outliers: OutlierRule = field(default=DEFAULT_RULE)
    window: float = 0.0
    panic: float = 0.0


class Cluster(Generic[M]):
    """Chooses among ``members``, of which there is at least one."""

    def __init__(
        self, members: Sequence[M], policy: Policy[M], random: Random, rule: ClusterRule
    ) -> None:
        self.members: Sequence[M] = members
        self._policy: Final = policy
        self._least: Final = LeastRequest[M](random)
        self._rule: Final = rule
        self._table = Table(members)
        self._until = -inf
        """The time until which ``_table`` is valid."""

    # ---- members

    def replace(self, members: Sequence[M], now: float, *, slowly: bool = True) -> None:
        """Replace the members by ``members``, at least one. ``slow_start`` applies to the new
        ones."""
        old_ids = set(map(id, self.members))
        for member in members if slowly else ():
            if id(member) not in old_ids:
                member.since = now
        self.members = members
        self._until = -inf

    # ---- choosing

    def choose(self, now: float, tried: Collection[M] = (), key: str = "") -> M:
        """Return the member for the next attempt and count the attempt as active. A member that is
        not in ``tried`` is preferred."""
        members = self.members
        if len(members) == 1:
            chosen = members[0]
        else:
            table = self._table if now < self._until else self._look(now)
            chosen = self._other(table, tried, key) if tried else self._policy.pick(table, key)
        chosen.active += 1
        return chosen

    def _other(self, table: Table[M], tried: Collection[M], key: str) -> M:
        """Choose an untried member, even an unavailable one rather than one that has just
        failed."""
        for pool in (table.members, self.members):
            others = [member for member in pool if member not in tried]
            if others:
                return keeper(key, others) if key else self._least.pick(Table(others))
        return self._policy.pick(table, key)

    def keeper(self, sequence: SequenceName) -> M:
        """Return the owner of ``sequence``, whatever its state
        (docs/decisions/0013-sequences-by-hash.md), and count the attempt as active."""
        owner = keeper(sequence_key(sequence), self.members)
        owner.active += 1
        return owner

    def available(self, now: float) -> Sequence[M]:
        """Return the members that are neither down nor ejected."""
        return [
            member for member in self.members if member.health.up and member.outlier.until <= now
        ]

    def _look(self, now: float) -> Table[M]:
        """Build the table of candidates, and find out how long it is valid."""
        rule, members = self._rule, self.members
        candidates = self.available(now)
        if not candidates or len(candidates) < rule.panic * len(members):
            candidates = members
        valid_until = min(
            (member.outlier.until for member in members if member.outlier.until > now), default=inf
        )
        growing = False
        shares = []
        for candidate in candidates:
            share = self._grown(candidate, now)
            growing |= share < 1.0
            shares.append(share * candidate.weight)
        if growing:
            valid_until = min(valid_until, now + rule.window / _STEPS)
        is_even = min(shares) == max(shares)
        self._table = Table(candidates, None if is_even else shares)
        self._until = valid_until
        return self._table

    def _grown(self, each: M, now: float) -> float:
        window, since = self._rule.window, max(each.since, each.outlier.until)
        if not window or since == -inf or now - since >= window:
            return 1.0
        return max(_LEAST_SHARE, (now - since) / window)

    # ---- outcomes and checks

    def finished(self, member: M, outcome: Outcome, now: float) -> bool:
        """Record that an attempt on ``member`` ended; return whether the member was ejected."""
        if outcome is Outcome.OK:
            member.served()
            return False
        member.active -= 1
        if outcome is Outcome.UNTOLD:
            return False
        member.failed += 1
        outlier, rule = member.outlier, self._rule.outliers
        outlier.failed(unreached=outcome is Outcome.UNREACHED, doubtful=outcome is Outcome.BROKEN)
        return outlier.is_sure(rule) and self._eject(member, now)

    def suspects(self, member: M, now: float) -> bool:
        """Return whether ``member`` has failed so often that a failed check would eject it."""
        due = member.outlier.is_due(self._rule.outliers, now)
        return due and self._may_eject(member, now)

    def convicted(self, member: M, now: float) -> bool:
        """Eject ``member``, a suspect whose check has failed; return whether it was ejected."""
        return self._eject(member, now, by_check=True)

    def _eject(self, member: M, now: float, *, by_check: bool = False) -> bool:
        if not self.suspects(member, now):
            return False
        member.outlier.eject(self._rule.outliers, now, by_check=by_check)
        self._until = -inf
        return True

    def _may_eject(self, member: M, now: float) -> bool:
        members = self.members
        ejected = sum(1 for candidate in members if candidate.outlier.until > now)
        available = self.available(now)
        return ejected < max(1, int(self._rule.outliers.share * len(members))) and any(
            candidate is not member for candidate in available
        )

    def checked(self, member: M, now: float, *, well: bool) -> bool:
        """Record a check of ``member``; return whether that changed its availability."""
        changed = member.health.checked(well=well)
        back = member.outlier.is_back(now, member.health.rise, well=well)
        if back or (changed and well):
            member.outlier.forgive(now)
            member.since = now
        if changed or back:
            self._until = -inf
        return changed or back
