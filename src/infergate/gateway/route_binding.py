"""A route together with its backend."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from infergate.backends.base import Backend
from infergate.core.datatypes import Datatype
from infergate.core.request_context import RequestContext
from infergate.routing.table import Route

_ALL_DATATYPES: Final = frozenset(Datatype)


@dataclass(frozen=True, slots=True, eq=False)
class RouteBinding:
    """A route and its backend. Compared by identity, so that it can be a dictionary key."""

    route: Route
    backend: Backend
    label: str = field(init=False)
    """The route's label in metrics and logs."""
    unsupported_datatypes: frozenset[Datatype] = field(init=False)
    """Datatypes that the backend's protocol cannot carry."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.route.label)
        object.__setattr__(self, "unsupported_datatypes", _ALL_DATATYPES - self.backend.datatypes)

    def apply_to(self, context: RequestContext) -> None:
        """Set the route, backend, timeout and retry policy of ``context``, and shorten its
        deadline to the route's timeout."""
        backend, timeout = self.backend, self.route.timeout
        context.record.route = self.label
        context.record.backend = backend.name
        context.record.backend_protocol = backend.protocol
        context.route_timeout = timeout
        context.retry_policy = self.route.retry
        if timeout is not None:
            context.shorten_deadline(time.monotonic() + timeout)
