"""Active health checks, in the backend's own protocol.

*Rule 1.* A check sends the protocol's readiness request (V2, legacy TRT) or, for GraphPipe, a
metadata request. If the server does not understand the request, the codec's alternative form is
tried.
*Rule 2.* A server that rejects the check itself (unsupported, not authorized) counts as healthy,
because the server is reachable and may be able to serve inferences. Over V2 REST, a server that
rejects the check counts as unhealthy, because Triton responds with 400 while it is not ready."""

from __future__ import annotations

import time
from typing import Any, Final

from infergate.backends.endpoints import AttemptOutcome, EndpointHandle
from infergate.codecs.base import Codec, SupportsServerVariants
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import HealthStatus, ServerReadyRequest
from infergate.transport.base import Upstream

_READY_REQUEST: Final = ServerReadyRequest()
_HEALTHY_REJECTIONS: Final = frozenset(
    {
        Kind.BAD_REQUEST,
        Kind.UNAUTHENTICATED,
        Kind.FORBIDDEN,
        Kind.NOT_FOUND,
        Kind.METHOD_NOT_ALLOWED,
        Kind.UNSUPPORTED,
        Kind.RATE_LIMITED,
    }
)
_NOT_UNDERSTOOD: Final = _HEALTHY_REJECTIONS | {Kind.BACKEND_GARBAGE, Kind.BACKEND_ERROR}
"""Errors after which the alternative form of the request is tried (see ``remote``)."""


class HealthChecker:
    """Checks endpoints over ``upstream`` with the messages of ``codec``."""

    def __init__(
        self, codec: Codec[Any, Any], upstream: Upstream[Any, Any], limits: Limits
    ) -> None:
        self._codec: Final = codec
        self._upstream: Final = upstream
        self._limits: Final = limits

    async def check(self, handle: EndpointHandle, timeout: float) -> bool:
        """Return whether the endpoint reports within ``timeout`` seconds that it is ready."""
        deadline = time.monotonic() + timeout
        handle.begin_attempt()
        try:
            kind = await self._error_kind(
                handle, self._codec.build_request(_READY_REQUEST, GENERIC), deadline
            )
            if kind in _NOT_UNDERSTOOD and isinstance(self._codec, SupportsServerVariants):
                wire = self._codec.build_alternative_request(_READY_REQUEST, kind)
                if wire is not None:
                    kind = await self._error_kind(handle, wire, deadline)
        finally:
            handle.finish_attempt(AttemptOutcome.UNKNOWN)
        return kind is None or kind in _HEALTHY_REJECTIONS

    async def _error_kind(self, handle: EndpointHandle, wire: Any, deadline: float) -> Kind | None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return Kind.TIMEOUT
        try:
            wire_response = await self._upstream.exchange(wire, handle.endpoint, remaining)
            response = self._codec.parse_response(wire_response, _READY_REQUEST, self._limits)
        except GatewayError as error:
            return error.kind
        return None if response == HealthStatus(ok=True) else Kind.NO_BACKEND
