"""The settings of a route that a request carries to its backend."""

from __future__ import annotations

from typing import Final

from infergate.core.records import record
from infergate.core.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy


@record
class RoutePolicy:
    """The timeout and the retries of a route's requests."""

    timeout: float | None = None
    """Seconds for a response, or for each response of a stream; None: the backend's timeout."""
    retry: RetryPolicy = DEFAULT_RETRY_POLICY


DEFAULT_ROUTE_POLICY: Final = RoutePolicy()
"""The policy of requests that take no route: the gateway's own queries."""
