"""The HTTP statuses of errors for clients, and the errors for the HTTP statuses of backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.core.errors import GatewayError, Kind

MAX_MESSAGE_CHARACTERS: Final = 2000
"""Maximum number of characters of an error message for a client."""

STATUS_BY_KIND: Final[Mapping[Kind, int]] = {
    Kind.BAD_REQUEST: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.METHOD_NOT_ALLOWED: 405,
    Kind.ALREADY_EXISTS: 409,
    Kind.UNSUPPORTED: 501,
    Kind.UNSUPPORTED_ENCODING: 415,
    Kind.TOO_LARGE: 413,
    Kind.RATE_LIMITED: 429,
    Kind.OVERLOADED: 503,
    Kind.NO_BACKEND: 503,
    Kind.LOOP_DETECTED: 508,
    Kind.TOO_MANY_HOPS: 508,
    Kind.CONNECT: 502,
    Kind.TIMEOUT: 504,
    Kind.BACKEND_GARBAGE: 502,
    Kind.BACKEND_ERROR: 500,
    Kind.CANCELLED: 499,
    Kind.INTERNAL: 500,
}
KIND_BY_STATUS: Final[Mapping[int, Kind]] = {
    401: Kind.UNAUTHENTICATED,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    405: Kind.BACKEND_GARBAGE,  # the gateway uses the methods of the specification
    408: Kind.TIMEOUT,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    501: Kind.UNSUPPORTED,
    503: Kind.NO_BACKEND,
    504: Kind.TIMEOUT,
    508: Kind.LOOP_DETECTED,  # from another gateway
}
"""The kind of error for a backend's status. Any other 4xx status is BAD_REQUEST (Triton and
graphpipe-go send 400, FastAPI sends 422, KServe sends 409), any other 5xx status is BACKEND_ERROR,
and all other statuses are BACKEND_GARBAGE."""


def kind_of_status(status: int) -> Kind:
    """Return the kind of error for a backend's ``status``, which is not 200."""
    kind = KIND_BY_STATUS.get(status)
    if kind is not None:
        return kind
    if 400 <= status < 500:
        return Kind.BAD_REQUEST
    return Kind.BACKEND_ERROR if 500 <= status < 600 else Kind.BACKEND_GARBAGE


def client_message(text: str) -> str:
    """Return ``text`` as a short error message in valid Unicode. Names in ``text`` may be as long
    as a body, and paths may contain lone surrogates."""
    return text[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()


def method_not_allowed(method: str, allowed: str) -> GatewayError:
    """Return the error for a request whose path allows only the methods in ``allowed``."""
    return GatewayError(
        Kind.METHOD_NOT_ALLOWED, f"method {method[:20]} is not allowed here, only {allowed}"
    )
