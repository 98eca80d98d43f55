"""Active health checks, in the backend's own protocol.

*Rule 1.* A check sends the protocol's readiness request (V2, legacy TRT) or, if the protocol has
none, another short request, such as GraphPipe's metadata request. If the server rejects the request
or responds with an error, the codec's alternative form of the request, if any, is tried.
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
"""Errors after which the alternative form of the request is tried."""


async def check_health(
    codec: Codec[Any, Any],
    upstream: Upstream[Any, Any],
    limits: Limits,
    handle: EndpointHandle,
    timeout: float,
) -> bool:
    """Return whether the endpoint reports within ``timeout`` seconds that it is ready, or rejects
    the check (rule 2). ``upstream`` sends the messages of ``codec``."""
    deadline = time.monotonic() + timeout

    async def error_kind(wire: Any) -> Kind | None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return Kind.TIMEOUT
        try:
            wire_response = await upstream.exchange(wire, handle.endpoint, remaining)
            response = codec.parse_response(wire_response, _READY_REQUEST, limits)
        except GatewayError as error:
            return error.kind
        return None if response == HealthStatus(ok=True) else Kind.NO_BACKEND

    handle.begin_attempt()
    try:
        kind = await error_kind(codec.build_request(_READY_REQUEST, GENERIC))
        if kind in _NOT_UNDERSTOOD and isinstance(codec, SupportsServerVariants):
            wire = codec.build_alternative_request(_READY_REQUEST, kind)
            if wire is not None:
                kind = await error_kind(wire)
    finally:
        handle.finish_attempt(AttemptOutcome.UNKNOWN)
    return kind is None or kind in _HEALTHY_REJECTIONS
