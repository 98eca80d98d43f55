"""Passive health checks: endpoints are ejected for a while after failed requests (Envoy's outlier
detection).

1. An endpoint is ejected after a number of consecutive failures, for a time that grows with the
   number of ejections: 30 s, 60 s, up to 300 s.
2. An ejected endpoint that was unreachable comes back as soon as it passes as many checks as bring
   a down endpoint up. One that failed in another way does not: its checks may have been good all
   along.
3. An endpoint may close connections because of one client's request. Unless enough consecutive
   failures are certainly its own, a check has to fail as well
   (docs/decisions/0041-failure-attribution.md).
4. Each period of that length without an ejection makes the next ejection shorter again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class OutlierRule:
    """``consecutive``: failures that eject an endpoint, 0: none is ejected. ``base_seconds`` and
    ``max_seconds``: the first and the longest ejection. ``max_share``: the share of the endpoints,
    from 0 to 1, that may be ejected at a time; one always may."""

    consecutive: int = 5
    base: float = 30.0
    longest: float = 300.0
    share: float = 0.1


DEFAULT_RULE: Final = OutlierRule()


class Outlier:
    """The passive health of one endpoint."""

    __slots__ = (
        "_answered", "_times", "by_check", "doubtful", "ejections", "row", "unreached", "until"
    )  # fmt: skip

    def __init__(self) -> None:
        self.row = 0
        """Consecutive failures."""
        self.doubtful = 0
        """Those of them that a request may have caused."""
        self.until = -inf
        """When the current or last ejection ends."""
        self.ejections = 0
        """Ejections in total."""
        self.unreached = False
        """The last failure was that no connection could be made."""
        self.by_check = False
        """A failed check has ejected it, so successful checks bring it back."""
        self._answered = 0
        """Consecutive successful checks since the last failure."""
        self._times = 0

    def failed(self, *, unreached: bool, doubtful: bool = False) -> None:
        """Record one more failure; ``is_ambiguous``: the request may have caused it."""
        if not self.row:
            self.doubtful = 0
        self.row += 1
        self.doubtful += doubtful
        self.unreached = unreached
        self._answered = 0

    def is_back(self, now: float, rise: int, *, well: bool) -> bool:
        """Record a check; return whether ``rise`` consecutive successful ones end the ejection."""
        self._answered = self._answered + 1 if well else 0
        reachable_again = self.unreached or self.by_check
        return reachable_again and self.until > now and self._answered >= rise

    def is_due(self, rule: OutlierRule, now: float) -> bool:
        """Return whether it has failed so often that it should be ejected."""
        return bool(rule.consecutive) and self.row >= rule.consecutive and self.until <= now

    def is_sure(self, rule: OutlierRule) -> bool:
        """Return whether the failures that are certainly its own are enough for an ejection."""
        return self.row - self.doubtful >= rule.consecutive

    def acquit(self) -> None:
        """Reset the consecutive failures: a check succeeded, so requests caused them."""
        self.row = 0

    def eject(self, rule: OutlierRule, now: float, *, by_check: bool = False) -> None:
        """Eject it from ``now`` on."""
        self.by_check = by_check
        if self._times:
            self._times = max(0, self._times - int((now - self.until) / rule.base))
        self._times += 1
        self.until = now + min(rule.base * self._times, rule.longest)
        self.ejections += 1
        self.acquit()

    def forgive(self, now: float) -> None:
        """End its ejection."""
        self.acquit()
        self.until = min(self.until, now)
