"""The settings of a route that a request carries to its backend."""

from __future__ import annotations

from typing import Final

from infergate.core.messages import ModelMetadata
from infergate.core.records import record
from infergate.core.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy


@record
class RoutePolicy:
    """The settings of a route that its backend follows."""

    timeout: float | None = None
    """Seconds for a response, or for each response of a stream; None: the backend's timeout."""
    retry: RetryPolicy = DEFAULT_RETRY_POLICY
    declared_metadata: ModelMetadata | None = None
    """The metadata of the requested model from the configuration, with the backend's names; the
    server is then not queried for it. Set for the inferences of declared models."""


DEFAULT_ROUTE_POLICY: Final = RoutePolicy()
"""The policy of requests that take no route: the gateway's own queries."""
