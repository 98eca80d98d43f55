"""The settings of a route that a request carries to its backend."""

from __future__ import annotations

from typing import Final

from infergate.core.messages import ModelMetadata
from infergate.core.records import record


@record
class HedgePolicy:
    """Send the request to a second endpoint if no response arrives within ``after_seconds`` or, if
    ``after_seconds`` is None, within the ``percentile`` (0 to 1) of recent response times."""

    after_seconds: float | None = None
    percentile: float = 0.0


@record
class RetryPolicy:
    """How failed requests are retried."""

    max_retries: int = 1
    """Attempts after the first."""
    is_idempotent: bool = False
    """Whether the request may be executed twice, and so may be retried after it was sent."""
    per_try_timeout: float | None = None
    """The timeout of each attempt in seconds; None: the remaining time of the request."""
    hedge: HedgePolicy | None = None


DEFAULT_RETRY_POLICY: Final = RetryPolicy()


@record
class RoutePolicy:
    """The settings of a route that its backend follows."""

    timeout: float | None = None
    """Seconds for a response, or for each response of a stream; None: the backend's timeout."""
    retry: RetryPolicy = DEFAULT_RETRY_POLICY
    declared_metadata: ModelMetadata | None = None
    """The metadata of a declared model from the configuration, with the backend's names; the
    server is then not queried for it."""


DEFAULT_ROUTE_POLICY: Final = RoutePolicy()
"""The policy of requests without a route: the gateway's own queries."""
