"""Explains each kind of error to an operator. The advice is the same as in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.core.errors import Kind
from infergate.core.log_events import ADVICE

MEANINGS: Final[Mapping[str, str]] = {
    Kind.BAD_REQUEST.value: "The request contradicts its protocol, or the model's metadata.",
    Kind.UNAUTHENTICATED.value: "The client sent no credential, or its key or token is not valid.",
    Kind.FORBIDDEN.value: "The client is authenticated, but no rule allows this operation on "
    "this model.",
    Kind.NOT_FOUND.value: "No route matches the model's name and version, or its backend does "
    "not have the model.",
    Kind.ALREADY_EXISTS.value: "The name is already registered.",
    Kind.METHOD_NOT_ALLOWED.value: "The path exists, but does not support this HTTP method.",
    Kind.UNSUPPORTED.value: "One of the two protocols cannot express the request: a datatype, an "
    "operation or a sequence.",
    Kind.UNSUPPORTED_ENCODING.value: "The compression of the body is not supported.",
    Kind.TOO_LARGE.value: "The request or the response exceeds a size limit.",
    Kind.RATE_LIMITED.value: "The client has exceeded its rate limit.",
    Kind.OVERLOADED.value: "A concurrency limit of the gateway or the queue of the backend is "
    "full, or the server is overloaded.",
    Kind.NO_BACKEND.value: "No endpoint of the backend can get the request now.",
    Kind.CONNECT.value: "The backend could not be reached: it is down, its address is wrong, or "
    "the TLS handshake failed.",
    Kind.TIMEOUT.value: "There was no response within the client's deadline or the route's "
    "timeout.",
    Kind.BACKEND_GARBAGE.value: "The backend's response broke off, or is not valid in its "
    "protocol.",
    Kind.BACKEND_ERROR.value: "The backend returned an error, which was passed on.",
    Kind.CANCELLED.value: "The client disconnected before the response.",
    Kind.INTERNAL.value: "A bug in infergate.",
}
"""By the value of ``Kind``."""


def explain(kind: str) -> dict[str, str]:
    """Return ``meaning`` and ``advice`` of an outcome as sentences; both empty if it is unknown."""
    advice = ADVICE.get(kind, "")
    end = "" if not advice or advice.endswith("?") else "."
    return {
        "meaning": MEANINGS.get(kind, ""),
        "advice": f"{advice[:1].upper()}{advice[1:]}{end}",
    }
