"""The start of every exchange with a backend: the deadline and the forwarded headers. mypyc
compiles this module, unlike ``request_sender``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from infergate.backends.header_filter import HeaderFilter
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext


class RequestPreparation:
    """Prepares requests to ``backend``. ``timeout``, in seconds, applies to routes without a
    timeout. ``add_headers`` adds headers to a request."""

    def __init__(
        self,
        backend: str,
        timeout: float,
        request_filter: HeaderFilter,
        add_headers: Callable[[Any, Mapping[str, str]], None],
    ) -> None:
        self._backend: Final = backend
        self._timeout: Final = timeout
        self._filter: Final = request_filter
        self._add_headers: Final = add_headers

    def timeout_for(self, context: RequestContext) -> float:
        """Return the timeout of the route in seconds. If the route has no timeout, return the
        backend's timeout."""
        timeout = context.policy.timeout
        return self._timeout if timeout is None else timeout

    def set_deadline(self, context: RequestContext, now: float) -> float:
        """Apply the timeout to ``context`` and return its deadline. Raises TIMEOUT if the deadline
        has passed."""
        deadline = context.deadline
        latest = now + self.timeout_for(context)
        if deadline is None or latest < deadline:
            context.deadline = deadline = latest
        if deadline <= now:
            raise deadline_error(self._backend)
        return deadline

    def prepare(self, wire: Any, context: RequestContext) -> None:
        """Add the forwarded client headers to ``wire``, and charge the response to the client's
        request. Raises GatewayError."""
        wire.memory = context.memory
        if forwarded := self._filter.select(context.headers):
            self._add_headers(wire, forwarded)


def deadline_error(backend: str) -> GatewayError:
    """Return the error for a deadline that passed before ``backend`` was contacted."""
    return GatewayError(Kind.TIMEOUT, f"backend '{backend}': the deadline has passed")
