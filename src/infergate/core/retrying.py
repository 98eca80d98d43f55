"""How a route wants its requests tried."""

from __future__ import annotations

from typing import Final

from infergate.core.records import record


@record
class Hedge:
    """Ask another endpoint as well where no answer has come ``after`` so many seconds, or, if that
    is None, after as long as the share ``percentile`` (0 to 1) of the last answers took."""

    after: float | None = None
    percentile: float = 0.0


@record
class RetryPolicy:
    """What becomes of a request that fails."""

    retries: int = 1
    """Tries beyond the first."""
    idempotent: bool = False
    """It may be carried out twice: what was sent may be sent again."""
    per_try: float | None = None
    """Seconds each try has; None: all that the request has."""
    hedge: Hedge | None = None


DEFAULT: Final = RetryPolicy()
