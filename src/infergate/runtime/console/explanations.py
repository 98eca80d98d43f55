"""Explains each kind of error to an operator, with the same advice as in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.core.errors import Kind
from infergate.core.log_events import ADVICE
from infergate.observe.recent_requests import RequestSample

_MEANINGS: Final = {
    Kind.BAD_REQUEST: "The request violates its protocol or does not match the model's metadata.",
    Kind.UNAUTHENTICATED: "The client sent no credential, or its key or token is not valid.",
    Kind.FORBIDDEN: "The client is authenticated, but no rule allows this operation on this model.",
    Kind.NOT_FOUND: "The path does not exist, no route matches the model's name and version, or "
    "the backend does not have the model.",
    Kind.ALREADY_EXISTS: "A shared memory region with this name is already registered.",
    Kind.METHOD_NOT_ALLOWED: "The path exists, but does not support this HTTP method.",
    Kind.UNSUPPORTED: "The protocol of the client or of the backend cannot express a part of the "
    "request, such as a datatype, an operation or a sequence.",
    Kind.UNSUPPORTED_ENCODING: "The compression of the body is not supported.",
    Kind.TOO_LARGE: "The request or the response exceeds a size limit.",
    Kind.RATE_LIMITED: "The client has exceeded its rate limit.",
    Kind.OVERLOADED: "A concurrency limit of the gateway is reached, the queue of the backend "
    "is full, or the server is overloaded.",
    Kind.NO_BACKEND: "No endpoint of the backend is available, or the server reported that it is "
    "unavailable.",
    Kind.LOOP_DETECTED: "A client's request has passed too many gateways, because a backend's "
    "endpoint leads back to a gateway.",
    Kind.TOO_MANY_HOPS: "The header 'infergate-hops', which a client or another gateway has set, "
    "says that the request has passed too many gateways.",
    Kind.CONNECT: "The backend could not be reached: it is down, its address is wrong, or the TLS "
    "handshake failed.",
    Kind.TIMEOUT: "There was no response within the client's deadline or the route's timeout.",
    Kind.BACKEND_GARBAGE: "The backend's response is incomplete, or is not valid in the backend's "
    "protocol.",
    Kind.BACKEND_ERROR: "The backend returned an error, which infergate passed on to the client.",
    Kind.CANCELLED: "The client disconnected before the response.",
    Kind.INTERNAL: "A bug in infergate.",
}
MEANINGS: Final[Mapping[str, str]] = {kind.value: text for kind, text in _MEANINGS.items()}
"""The meaning of each outcome, keyed by the value of ``Kind``."""


def explain(kind: str) -> dict[str, str]:
    """Return the ``meaning`` and ``advice`` of an outcome as sentences. Both are empty for an
    unknown outcome."""
    advice = ADVICE.get(kind, "")
    end = "" if not advice or advice.endswith("?") else "."
    return {"meaning": MEANINGS.get(kind, ""), "advice": f"{advice[:1].upper()}{advice[1:]}{end}"}


def as_json(request: tuple[RequestSample, int | None]) -> dict[str, Any]:
    """Return ``request``, which is a sample and the number of its worker, as JSON with an
    explanation of the outcome."""
    sample, worker = request
    return (
        sample._asdict()
        | {
            "worker": worker,
            "phases": [{"phase": name, "seconds": each} for name, each in sample.phases],
            "inputs": [each._asdict() for each in sample.inputs],
        }
        | explain(sample.kind)
    )
