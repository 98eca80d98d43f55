"""The settings of a route that a request carries to its backend."""

from __future__ import annotations

from typing import Final

from infergate.core.messages import ModelMetadata
from infergate.core.priorities import DEFAULT_PRIORITY
from infergate.core.records import record


@record
class HedgePolicy:
    """Hedging: the request is sent to a second endpoint if no response arrives within
    ``after_seconds`` or, if ``after_seconds`` is None, within the ``percentile`` (0 to 1) of recent
    response times."""

    after_seconds: float | None = None
    percentile: float = 0.0


@record
class RetryPolicy:
    """The limits on retries of a failed request."""

    max_retries: int = 1
    """Attempts after the first."""
    is_idempotent: bool = False
    """Whether the server may safely execute a request twice. If so, a request may be retried after
    it was sent."""
    per_try_timeout: float | None = None
    """The timeout of each attempt in seconds. None means the remaining time of the request."""
    hedge: HedgePolicy | None = None


DEFAULT_RETRY_POLICY: Final = RetryPolicy()


@record
class RoutePolicy:
    """The settings of a route that apply in its backend."""

    timeout: float | None = None
    """The timeout of a response, or of each response of a stream, in seconds. None means the
    backend's timeout."""
    retry: RetryPolicy = DEFAULT_RETRY_POLICY
    declared_metadata: ModelMetadata | None = None
    """The configured metadata of a declared model, with the backend's names. If it is set, the
    server is not queried for metadata."""
    priority: int = DEFAULT_PRIORITY
    """The priority of requests that do not set a priority."""


DEFAULT_ROUTE_POLICY: Final = RoutePolicy()
"""The policy of requests without a route: queries that the gateway itself sends."""
