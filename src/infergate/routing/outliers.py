"""Whether an endpoint is let alone for a while, by how the requests to it end (Envoy's outlier
detection, passive health checks).

*Rule 1.* After so many failures in a row it is ejected, for a time that grows with the number of
times that it was: 30 s, 60 s, up to 300 s.
*Rule 2.* One that could not be reached and then answers as many checks as make one that is down be
up again is back at once. One that failed otherwise is not: its checks may well be good all along.
*Rule 3.* An endpoint that breaks off may do so because of one client's request. Unless so many
failures in a row are surely its own, a check has to fail as well (docs/decisions/0041-blame.md).
*Rule 4.* Each such time that it then spends without being ejected makes the next one shorter again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class OutlierRule:
    """``consecutive``: failures in a row, 0: nothing is ejected. ``base`` and ``longest`` in
    seconds; ``share``: how many of the endpoints may be out at a time, from 0 to 1, but one always
    may."""

    consecutive: int = 5
    base: float = 30.0
    longest: float = 300.0
    share: float = 0.1


DEFAULT_RULE: Final = OutlierRule()


class Outlier:
    """What was seen of one endpoint."""

    __slots__ = (
        "_answered", "_times", "by_check", "doubtful", "ejections", "row", "unreached", "until"
    )  # fmt: skip

    def __init__(self) -> None:
        self.row = 0
        """Failures in a row."""
        self.doubtful = 0
        """How many of those a request may have caused."""
        self.until = -inf
        """When it is back, or was."""
        self.ejections = 0
        """How often it was ejected, ever."""
        self.unreached = False
        """Its last failure was that there was no connection."""
        self.by_check = False
        """A check that failed has ejected it, so checks that go well bring it back."""
        self._answered = 0
        """Checks that it has answered in a row since."""
        self._times = 0

    def failed(self, *, unreached: bool, doubtful: bool = False) -> None:
        """One more failure in a row; ``doubtful``: the request may have caused it."""
        if not self.row:
            self.doubtful = 0
        self.row += 1
        self.doubtful += doubtful
        self.unreached = unreached
        self._answered = 0

    def is_back(self, now: float, rise: int, *, well: bool) -> bool:
        """A check has ended; whether it is back by that, after ``rise`` good ones in a row."""
        self._answered = self._answered + 1 if well else 0
        reachable_again = self.unreached or self.by_check
        return reachable_again and self.until > now and self._answered >= rise

    def is_due(self, rule: OutlierRule, now: float) -> bool:
        """Whether it has failed so often that it is to be ejected."""
        return bool(rule.consecutive) and self.row >= rule.consecutive and self.until <= now

    def is_sure(self, rule: OutlierRule) -> bool:
        """Whether failures that are surely its own are enough to eject it."""
        return self.row - self.doubtful >= rule.consecutive

    def acquit(self) -> None:
        """A check went well: the failures in a row were those of requests."""
        self.row = 0

    def eject(self, rule: OutlierRule, now: float, *, by_check: bool = False) -> None:
        """Let it alone from ``now`` on."""
        self.by_check = by_check
        if self._times:
            self._times = max(0, self._times - int((now - self.until) / rule.base))
        self._times += 1
        self.until = now + min(rule.base * self._times, rule.longest)
        self.ejections += 1
        self.acquit()

    def forgive(self, now: float) -> None:
        """It was seen to be well: it is back."""
        self.acquit()
        self.until = min(self.until, now)
