"""The gRPC status for each kind of error, and the error for a backend's gRPC status."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from infergate.codecs.profiles import corrected_kind
from infergate.core.errors import GatewayError, Kind, Origin, parse_retry_after
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.core.wire import RpcResponse

KIND_BY_CODE: Final[dict[int, Kind]] = {
    1: Kind.CANCELLED,  # CANCELLED
    2: Kind.BACKEND_ERROR,  # UNKNOWN
    3: Kind.BAD_REQUEST,  # INVALID_ARGUMENT
    4: Kind.TIMEOUT,  # DEADLINE_EXCEEDED
    5: Kind.NOT_FOUND,  # NOT_FOUND
    6: Kind.ALREADY_EXISTS,  # ALREADY_EXISTS
    7: Kind.FORBIDDEN,  # PERMISSION_DENIED
    8: Kind.OVERLOADED,  # RESOURCE_EXHAUSTED
    9: Kind.BAD_REQUEST,  # FAILED_PRECONDITION (HTTP 422 in MLServer)
    10: Kind.BACKEND_ERROR,  # ABORTED
    11: Kind.BAD_REQUEST,  # OUT_OF_RANGE
    12: Kind.UNSUPPORTED,  # UNIMPLEMENTED
    13: Kind.BACKEND_ERROR,  # INTERNAL
    14: Kind.NO_BACKEND,  # UNAVAILABLE
    15: Kind.BACKEND_ERROR,  # DATA_LOSS
    16: Kind.UNAUTHENTICATED,  # UNAUTHENTICATED
}
"""The kind of error for each gRPC status code. An undefined code is a BACKEND_ERROR."""

_RESOURCE_EXHAUSTED: Final = 8
"""The code of an error that reports an exhausted memory budget."""
CODE_BY_KIND: Final[dict[Kind, int]] = {
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
    Kind.LOOP_DETECTED: 9,  # FAILED_PRECONDITION
    Kind.TOO_MANY_HOPS: 9,  # FAILED_PRECONDITION
    Kind.CONNECT: 14,  # UNAVAILABLE
    Kind.TIMEOUT: 4,  # DEADLINE_EXCEEDED
    Kind.BACKEND_GARBAGE: 13,  # INTERNAL
    Kind.BACKEND_ERROR: 13,  # INTERNAL
    Kind.CANCELLED: 1,  # CANCELLED
    Kind.INTERNAL: 13,  # INTERNAL
}
"""The status code that a client receives for each kind of error."""

_TOO_LARGE = re.compile("message (larger than max|exceeds)", re.IGNORECASE)
"""The texts with which grpc-core, Go, Java and .NET reject an oversized message. The status of
such an error is RESOURCE_EXHAUSTED, but a retry cannot succeed."""


def status_code(error: GatewayError) -> int:
    """Return the status code that a client receives for ``error``."""
    if error.limit == IN_FLIGHT_BYTES:
        return _RESOURCE_EXHAUSTED
    return CODE_BY_KIND[error.kind]


def raise_status(wire: RpcResponse) -> NoReturn:
    """Raise the error that a backend's status reports, with the backend's message."""
    kind = KIND_BY_CODE.get(wire.code, Kind.BACKEND_ERROR)
    if kind is Kind.OVERLOADED and _TOO_LARGE.search(wire.details):
        kind = Kind.TOO_LARGE
    raise GatewayError(
        corrected_kind(kind, wire.details),
        wire.details or f"the backend responded with gRPC status {wire.code} and no message",
        origin=Origin.BACKEND,
        retry_after=parse_retry_after(wire.metadata),
    )
