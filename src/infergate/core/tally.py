"""What is counted of the traffic of a backend, and of a route, besides its requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from infergate.core.times import REQUEST, Times


@dataclass(slots=True)
class Tally:
    """Of one backend, since the process began. Who causes a number counts it."""

    retries: Counter[str] = field(default_factory=Counter)
    """Tries beyond the first, by why: ``not_sent``, ``broken``, ``timeout`` or ``declined``."""
    exhausted: int = 0
    """Failures that were not tried again, hedges that were not sent, because the budget was
    used up."""
    hedges_won: int = 0
    """Hedges whose answer was taken."""
    hedges_lost: int = 0
    waiting: int = 0
    """Requests that wait for a place now."""
    refused: int = 0
    """Requests that were refused because the queue was full."""
    expired: int = 0
    """Requests whose deadline passed while they waited."""
    waited: Times = field(default_factory=lambda: Times(REQUEST))
    """How long who got a place had waited for it."""

    def hedged(self, won: bool | None) -> None:  # noqa: FBT001 - it is an outcome
        """A request that might have been sent twice is over; None: it was not."""
        if won is not None:
            self.hedges_won += won
            self.hedges_lost += not won


@dataclass(slots=True)
class RouteTally:
    """Of one route, since the process began."""

    fallbacks: int = 0
    """Inferences that went to the fallback."""
    mirrored: Counter[str] = field(default_factory=Counter)
    """Copies by what became of them: ``ok``, ``failed`` or ``dropped``, for too many were under
    way."""
