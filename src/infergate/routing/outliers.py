"""Passive health checks: endpoints are ejected for some time after failed requests (Envoy's outlier
detection).

1. An endpoint is ejected after a number of consecutive failures. The ejection time grows with each
   ejection: by default 30 s, 60 s, and so on, up to 300 s. Each period of ``base_seconds`` without
   an ejection shortens the next ejection by ``base_seconds``.
2. The ejection of an unreachable endpoint, or an ejection that a failed check caused, ends early
   after ``rise`` successful checks. Other ejections end early only when the endpoint was
   down and is up again, because checks may also have succeeded while requests failed.
3. A client's request may cause an endpoint to close connections. If the number of consecutive
   failures is reached only because of such failures, an ejection also requires a failed check
   (docs/decisions/0041-failure-attribution.md)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class OutlierRule:
    """The rule for ejections. ``consecutive`` failures eject an endpoint; 0 disables ejection. The
    first ejection lasts ``base_seconds``, and no ejection lasts longer than ``max_seconds``. At
    most ``max_share`` (0 to 1) of the endpoints are ejected at the same time, but one ejected
    endpoint is always allowed."""

    consecutive: int = 5
    base_seconds: float = 30.0
    max_seconds: float = 300.0
    max_share: float = 0.1


DEFAULT_RULE: Final = OutlierRule()


@dataclass(slots=True, eq=False)
class OutlierState:
    """The recent failures and the ejection of one endpoint."""

    consecutive_failures: int = 0
    ambiguous_failures: int = 0
    """Number of consecutive failures that requests may have caused."""
    ejected_until: float = -inf
    """The end of the current or last ejection."""
    ejection_count: int = 0
    is_unreachable: bool = False
    """Whether the last failure was a failed connection attempt."""
    ejected_by_check: bool = False
    """Whether a failed check caused the ejection. If so, successful checks end the ejection."""
    _successful_checks: int = 0
    """Number of consecutive successful checks since the last failure."""
    _backoff_steps: int = 0

    def record_failure(self, *, is_unreachable: bool, is_ambiguous: bool = False) -> None:
        """Record a failure. ``is_ambiguous`` means that the request may have caused the failure."""
        if not self.consecutive_failures:
            self.ambiguous_failures = 0
        self.consecutive_failures += 1
        self.ambiguous_failures += is_ambiguous
        self.is_unreachable = is_unreachable
        self._successful_checks = 0

    def record_check(self, now: float, rise: int, *, succeeded: bool) -> bool:
        """Record a check. Return whether ``rise`` successful checks in a row end the ejection."""
        self._successful_checks = self._successful_checks + 1 if succeeded else 0
        may_end = self.is_unreachable or self.ejected_by_check
        return may_end and self.ejected_until > now and self._successful_checks >= rise

    def is_ejection_due(self, rule: OutlierRule, now: float) -> bool:
        """Return whether the endpoint has enough failures for an ejection and is not ejected."""
        return (
            bool(rule.consecutive)
            and self.consecutive_failures >= rule.consecutive
            and self.ejected_until <= now
        )

    def is_certain(self, rule: OutlierRule) -> bool:
        """Return whether the failures that are not ambiguous suffice for an ejection."""
        return self.consecutive_failures - self.ambiguous_failures >= rule.consecutive

    def eject(self, rule: OutlierRule, now: float, *, by_check: bool = False) -> None:
        """Eject the endpoint at ``now``. ``by_check`` means that a failed check caused the
        ejection."""
        self.ejected_by_check = by_check
        if self._backoff_steps:
            self._backoff_steps = max(
                0, self._backoff_steps - int((now - self.ejected_until) / rule.base_seconds)
            )
        self._backoff_steps += 1
        self.ejected_until = now + min(rule.base_seconds * self._backoff_steps, rule.max_seconds)
        self.ejection_count += 1
        self.consecutive_failures = 0

    def readmit(self, now: float) -> None:
        self.consecutive_failures = 0
        self.ejected_until = min(self.ejected_until, now)
