"""A route with its backend."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Final

from infergate.backends.base import Backend
from infergate.core.datatypes import Datatype
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from infergate.gateway.route_layers import TransformsMetadata
from infergate.routing.table import Route

_ALL_DATATYPES: Final = frozenset(Datatype)


@dataclass(frozen=True, slots=True, eq=False)
class RouteBinding:
    """A route and its backend. Bindings are compared by identity and can be dictionary keys."""

    route: Route
    backend: Backend
    label: str = field(init=False)
    """The route's label in metrics and logs."""
    policy: RoutePolicy = field(init=False)
    idle_policy: RoutePolicy = field(init=False)
    """The policy of a stream after its first response: the idle timeout replaces the timeout."""
    unsupported_datatypes: frozenset[Datatype] = field(init=False)
    """Datatypes that the backend's protocol does not support."""
    metadata_layers: list[TransformsMetadata] = field(default_factory=list, init=False)
    """The route's layers that change metadata. The last layer is closest to the client."""

    def __post_init__(self) -> None:
        route = self.route
        policy = idle_policy = RoutePolicy(route.timeout, route.retry, priority=route.priority)
        if route.idle_timeout is not None:
            idle_policy = replace(policy, timeout=route.idle_timeout)
        object.__setattr__(self, "label", route.label)
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "idle_policy", idle_policy)
        object.__setattr__(self, "unsupported_datatypes", _ALL_DATATYPES - self.backend.datatypes)

    def apply_to(self, context: RequestContext) -> None:
        """Set the route's policy in ``context``, record the route and the backend, and shorten the
        deadline to the route's timeout."""
        policy, backend, record = self.policy, self.backend, context.record
        record.route = self.label
        record.backend = backend.name
        record.backend_protocol = backend.protocol
        context.policy = policy
        if policy.timeout is not None:
            context.shorten_deadline(time.monotonic() + policy.timeout)
