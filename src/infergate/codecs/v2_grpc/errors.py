"""Errors as gRPC statuses, both ways (seed 000, "errors are indicated by google.rpc.Status")."""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.wire import NO_HEADERS, RpcResponse

CODES: Final[dict[Kind, int]] = {
    Kind.BAD_REQUEST: 3,  # INVALID_ARGUMENT
    Kind.UNAUTHENTICATED: 16,  # UNAUTHENTICATED
    Kind.FORBIDDEN: 7,  # PERMISSION_DENIED
    Kind.NOT_FOUND: 5,  # NOT_FOUND
    Kind.METHOD_NOT_ALLOWED: 12,  # UNIMPLEMENTED
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
"""What a client is told. Every kind has its row; a test walks them."""

KINDS: Final[dict[int, Kind]] = {
    1: Kind.CANCELLED,  # CANCELLED
    2: Kind.BACKEND_ERROR,  # UNKNOWN
    3: Kind.BAD_REQUEST,  # INVALID_ARGUMENT
    4: Kind.TIMEOUT,  # DEADLINE_EXCEEDED
    5: Kind.NOT_FOUND,  # NOT_FOUND
    6: Kind.BAD_REQUEST,  # ALREADY_EXISTS
    7: Kind.FORBIDDEN,  # PERMISSION_DENIED
    8: Kind.OVERLOADED,  # RESOURCE_EXHAUSTED
    9: Kind.BAD_REQUEST,  # FAILED_PRECONDITION: MLServer's 422
    10: Kind.BACKEND_ERROR,  # ABORTED
    11: Kind.BAD_REQUEST,  # OUT_OF_RANGE
    12: Kind.UNSUPPORTED,  # UNIMPLEMENTED
    13: Kind.BACKEND_ERROR,  # INTERNAL
    14: Kind.NO_BACKEND,  # UNAVAILABLE
    15: Kind.BACKEND_ERROR,  # DATA_LOSS
    16: Kind.UNAUTHENTICATED,  # UNAUTHENTICATED
}
"""What a backend's status means. A code gRPC does not define is a BACKEND_ERROR."""

_TOO_LARGE = re.compile("message (larger than max|exceeds)", re.IGNORECASE)
"""How grpc-core, Go ("received message larger than max"), Java ("gRPC message exceeds maximum
size") and .NET word the RESOURCE_EXHAUSTED that no retry will help against."""

# grpc-message is percent-encoded into a header, at worst three bytes for one, and clients turn
# metadata over 8 KiB away.
_DETAILS_BYTES: Final = 2000
_RETRY_AFTER: Final = "retry-after"


def build_error(error: GatewayError) -> RpcResponse:
    """``error`` as a status; ``retry_after`` as trailing metadata, whole seconds rounded up."""
    details = error.public.encode("utf-8", "replace")
    if len(details) > _DETAILS_BYTES:
        details = details[:_DETAILS_BYTES] + b"..."
    metadata = NO_HEADERS
    if error.retry_after is not None:
        metadata = {_RETRY_AFTER: str(math.ceil(error.retry_after))}
    return RpcResponse(
        code=CODES[error.kind], details=details.decode("utf-8", "ignore"), metadata=metadata
    )


def raise_status(wire: RpcResponse) -> NoReturn:
    """Raise a backend's status; its message is relayed."""
    kind = KINDS.get(wire.code, Kind.BACKEND_ERROR)
    if kind is Kind.OVERLOADED and _TOO_LARGE.search(wire.details):
        kind = Kind.TOO_LARGE
    after = wire.metadata.get(_RETRY_AFTER, "")
    raise GatewayError(
        kind,
        wire.details or f"the backend answered with gRPC status {wire.code} and no message",
        origin=Origin.BACKEND,
        retry_after=float(after) if after.isascii() and after.isdigit() else None,
    )
