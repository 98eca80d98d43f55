"""The retry policy of a route."""

from __future__ import annotations

from typing import Final

from infergate.core.records import record


@record
class HedgePolicy:
    """Send the request to a second endpoint if there is no response ``after_seconds``, or, if that
    is None, after the ``percentile`` (0 to 1) of recent response times."""

    after_seconds: float | None = None
    percentile: float = 0.0


@record
class RetryPolicy:
    """How failed requests are retried."""

    max_retries: int = 1
    """Attempts after the first."""
    is_idempotent: bool = False
    """The request may be executed twice, so it may be retried after it was sent."""
    per_try_timeout: float | None = None
    """The timeout of each attempt in seconds; None: the time that the request has left."""
    hedge: HedgePolicy | None = None


DEFAULT_RETRY_POLICY: Final = RetryPolicy()
