"""The endpoints of one backend, and which of them may be asked: pure, time is an argument.

*Rule 1.* One that is down (``health``) or ejected (``outliers``) is not asked, while others are.
*Rule 2.* Panic: where none is left, or fewer than a share of all that the operator names, all are
asked: whoever guesses that all are dead is more likely wrong himself (Envoy's panic threshold).
*Rule 3.* At most a share of all is ejected at a time, but one always may be, and never the last
that may be asked.
*Rule 4.* Slow start: one that comes back or is new takes part with a share that grows, from a tenth
to all of it, over a window.
*Rule 5.* A lone endpoint is asked, whatever is known of it.
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
"""How often a share grows in a window."""


class Member:
    """One endpoint. ``name`` as all gateways call it; ``weight`` its share beside the others'."""

    __slots__ = ("active", "failed", "health", "name", "ok", "outlier", "since", "weight")

    def __init__(self, name: bytes, weight: float, health: Health) -> None:
        self.name: Final = name
        self.weight: Final = weight
        self.health: Final = health
        self.outlier: Final = Outlier()
        self.active = 0
        """Requests under way."""
        self.ok = 0
        """Requests that ended well, ever."""
        self.failed = 0
        """Requests in which it did not do its part, ever."""
        self.since = -inf
        """When it joined, or came back, as far as its share still grows."""

    def served(self) -> None:
        """An attempt on it has ended well."""
        self.active -= 1
        self.ok += 1
        self.outlier.row = 0


M = TypeVar("M", bound=Member)


@dataclass(frozen=True, slots=True)
class ClusterRule:
    """``window`` of slow start in seconds, 0: none. ``panic``: from 0 to 1."""

    outliers: OutlierRule = field(default=DEFAULT_RULE)
    window: float = 0.0
    panic: float = 0.0


class Cluster(Generic[M]):
    """Chooses among ``members``, of whom there is at least one."""

    def __init__(
        self, members: Sequence[M], policy: Policy[M], random: Random, rule: ClusterRule
    ) -> None:
        self.members: Sequence[M] = members
        self._policy: Final = policy
        self._least: Final = LeastRequest[M](random)
        self._rule: Final = rule
        self._table = Table(members)
        self._until = -inf
        """Until when ``_table`` is true."""

    # ---- who there is

    def replace(self, members: Sequence[M], now: float, *, slowly: bool = True) -> None:
        """From now on there are ``members``, at least one. ``slowly``: the new ones start so."""
        known = set(map(id, self.members))
        for each in members if slowly else ():
            if id(each) not in known:
                each.since = now
        self.members = members
        self._until = -inf

    # ---- choosing

    def choose(self, now: float, tried: Collection[M] = (), key: str = "") -> M:
        """For the next attempt, another than those that were ``tried`` where there is one. It has
        one more request under way."""
        members = self.members
        if len(members) == 1:
            chosen = members[0]
        else:
            table = self._table if now < self._until else self._look(now)
            chosen = self._other(table, tried, key) if tried else self._policy.pick(table, key)
        chosen.active += 1
        return chosen

    def _other(self, table: Table[M], tried: Collection[M], key: str) -> M:
        """Rather one that may not be asked than the same again, which has just failed."""
        for among in (table.members, self.members):
            others = [each for each in among if each not in tried]
            if others:
                return keeper(key, others) if key else self._least.pick(Table(others))
        return self._policy.pick(table, key)

    def keeper(self, sequence: SequenceName) -> M:
        """The one that has ``sequence``, whatever is known of it (docs/decisions/0013). It has one
        more request under way."""
        kept = keeper(sequence_key(sequence), self.members)
        kept.active += 1
        return kept

    def available(self, now: float) -> Sequence[M]:
        """Those that are neither down nor ejected."""
        return [each for each in self.members if each.health.up and each.outlier.until <= now]

    def _look(self, now: float) -> Table[M]:
        """Make the table anew, and find out how long it is good for."""
        rule, members = self._rule, self.members
        asked = self.available(now)
        if not asked or len(asked) < rule.panic * len(members):
            asked = members
        until = min((e.outlier.until for e in members if e.outlier.until > now), default=inf)
        growing = False
        shares = []
        for each in asked:
            share = self._grown(each, now)
            growing |= share < 1.0
            shares.append(share * each.weight)
        if growing:
            until = min(until, now + rule.window / _STEPS)
        even = min(shares) == max(shares)
        self._table = Table(asked, None if even else shares)
        self._until = until
        return self._table

    def _grown(self, each: M, now: float) -> float:
        window, since = self._rule.window, max(each.since, each.outlier.until)
        if not window or since == -inf or now - since >= window:
            return 1.0
        return max(_LEAST_SHARE, (now - since) / window)

    # ---- what was learnt

    def finished(self, member: M, outcome: Outcome, now: float) -> bool:
        """An attempt on ``member`` has ended; whether it was ejected for that."""
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
        """Whether ``member`` would be ejected if a check failed, too."""
        due = member.outlier.is_due(self._rule.outliers, now)
        return due and self._may_eject(member, now)

    def convicted(self, member: M, now: float) -> bool:
        """A check of ``member``, which was suspected, has failed; whether it was ejected."""
        return self._eject(member, now, by_check=True)

    def _eject(self, member: M, now: float, *, by_check: bool = False) -> bool:
        if not self.suspects(member, now):
            return False
        member.outlier.eject(self._rule.outliers, now, by_check=by_check)
        self._until = -inf
        return True

    def _may_eject(self, member: M, now: float) -> bool:
        members = self.members
        out = sum(1 for each in members if each.outlier.until > now)
        left = self.available(now)
        return out < max(1, int(self._rule.outliers.share * len(members))) and any(
            each is not member for each in left
        )

    def checked(self, member: M, now: float, *, well: bool) -> bool:
        """A check of ``member`` has ended; whether it is up or down, or back, by that."""
        changed = member.health.checked(well=well)
        back = member.outlier.is_back(now, member.health.rise, well=well)
        if back or (changed and well):
            member.outlier.forgive(now)
            member.since = now
        if changed or back:
            self._until = -inf
        return changed or back
