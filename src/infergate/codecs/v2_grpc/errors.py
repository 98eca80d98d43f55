"""Errors as gRPC statuses (seed 000, "errors are indicated by google.rpc.Status")."""

from __future__ import annotations

from typing import Final

from infergate.core.errors import GatewayError, Kind, retry_after_headers
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.core.wire import RpcResponse

CODES: Final[dict[Kind, int]] = {
    Kind.BAD_REQUEST: 3,  # INVALID_ARGUMENT
    Kind.UNAUTHENTICATED: 16,  # UNAUTHENTICATED
    Kind.FORBIDDEN: 7,  # PERMISSION_DENIED
    Kind.NOT_FOUND: 5,  # NOT_FOUND
    Kind.METHOD_NOT_ALLOWED: 12,  # UNIMPLEMENTED
    Kind.ALREADY_EXISTS: 6,  # ALREADY_EXISTS
    Kind.UNSUPPORTED: 12,  # UNIMPLEMENTED
    Kind.UNSUPPORTED_ENCODING: 12,  # UNIMPLEMENTED
    Kind.TOO_LARGE: 8,  # RESOURCE_EXHAUSTED
    Kind.RATE_LIMITED: 8,  # RESOURCE_EXHAUSTED
    Kind.OVERLOADED: 14,  # UNAVAILABLE
    Kind.NO_BACKEND: 14,  # UNAVAILABLE
    Kind.CONNECT: 14,  # UNAVAILABLE
    Kind.TIMEOUT: 4,  # DEADLINE_EXCEEDED
    Kind.BACKEND_GARBAGE: 13,  # INTERNAL
    Kind.BACKEND_ERROR: 13,  # INTERNAL
    Kind.CANCELLED: 1,  # CANCELLED
    Kind.INTERNAL: 13,  # INTERNAL
}
"""The status code for each kind of error. A test checks that every kind has an entry."""
_RESOURCE_EXHAUSTED: Final = 8
"""The code if the memory budget is exhausted."""

# grpc-message is percent-encoded, which can triple its size; clients reject metadata over 8 KiB.
_DETAILS_BYTES: Final = 2000


def build_error(error: GatewayError) -> RpcResponse:
    """Return `error` as a status, with ``retry_after`` as trailing metadata in whole seconds."""
    details = error.public.encode("utf-8", "replace")
    if len(details) > _DETAILS_BYTES:
        details = details[:_DETAILS_BYTES] + b"..."
    return RpcResponse(
        code=_RESOURCE_EXHAUSTED if error.limit == IN_FLIGHT_BYTES else CODES[error.kind],
        details=details.decode("utf-8", "ignore"),
        metadata=retry_after_headers(error),
    )
