"""Errors both ways: as an HTTP status and text, and as the errors of an InferResponse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import flatbuffers

from infergate.codecs.graphpipe.fields import CODE, MESSAGE
from infergate.codecs.graphpipe.reading import Table
from infergate.codecs.graphpipe.schema import Error, InferResponse
from infergate.core.errors import GatewayError, Kind, Origin, refusal_headers, retry_seconds
from infergate.core.wire import HttpResponse

LONGEST: Final = 2000
"""Characters of a message that a client is told."""
TEXT: Final[Mapping[str, str]] = {
    "content-type": "text/plain; charset=utf-8",
    "x-content-type-options": "nosniff",
}
"""As graphpipe-go's servers answer with text."""
BINARY: Final[Mapping[str, str]] = {"content-type": "application/octet-stream"}

STATUS: Final[Mapping[Kind, int]] = {
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
    Kind.CONNECT: 502,
    Kind.TIMEOUT: 504,
    Kind.BACKEND_GARBAGE: 502,
    Kind.BACKEND_ERROR: 500,
    Kind.CANCELLED: 499,
    Kind.INTERNAL: 500,
}
"""What tells each kind: the status, or the code of an Error. A test walks them."""

# ---- to clients


def refuse_by_status(error: GatewayError) -> HttpResponse:
    """The message as text, ended by a line feed, as graphpipe-go writes it. Never raises."""
    return HttpResponse(
        STATUS[error.kind], {**TEXT, **refusal_headers(error)}, [_told(error) + b"\n"]
    )


def refuse_by_response(error: GatewayError) -> HttpResponse:
    """An InferResponse without outputs and with one Error. Never raises."""
    builder = flatbuffers.Builder(256)
    message = builder.CreateString(_told(error))
    Error.Start(builder)
    Error.AddCode(builder, STATUS[error.kind])
    Error.AddMessage(builder, message)
    told = Error.End(builder)
    InferResponse.StartErrorsVector(builder, 1)
    builder.PrependUOffsetTRelative(told)
    errors = builder.EndVector()
    InferResponse.StartOutputTensorsVector(builder, 0)
    tensors = builder.EndVector()
    InferResponse.Start(builder)
    InferResponse.AddOutputTensors(builder, tensors)
    InferResponse.AddErrors(builder, errors)
    builder.Finish(InferResponse.End(builder))
    return HttpResponse(200, BINARY, [bytes(builder.Output())])


def _told(error: GatewayError) -> bytes:
    return error.public[:LONGEST].encode("utf-8", "replace")


# ---- from backends

KIND: Final[Mapping[int, Kind]] = {
    401: Kind.UNAUTHENTICATED,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    405: Kind.BACKEND_GARBAGE,  # every method we use is the specification's
    408: Kind.TIMEOUT,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    501: Kind.UNSUPPORTED,
    503: Kind.NO_BACKEND,
    504: Kind.TIMEOUT,
}
"""What a status other than 200 means. Others: 4xx BAD_REQUEST (graphpipe-go: 400 for everything),
5xx BACKEND_ERROR, the rest is no answer to anything we ask."""


def kind_of(status: int) -> Kind:
    """The kind that a backend's ``status`` other than 200 tells."""
    known = KIND.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return Kind.BAD_REQUEST
    return Kind.BACKEND_ERROR if 500 <= status < 600 else Kind.BACKEND_GARBAGE


def error_of_status(status: int, headers: Mapping[str, str], body: bytes) -> GatewayError:
    """What a server's answer other than 200 tells: its text, unless that is a page of HTML."""
    text = body[: 4 * LONGEST].decode("utf-8", "replace").strip()
    line = text.partition("\n")[0].strip()
    readable = line.isprintable() and not line.startswith("<")
    return GatewayError(
        kind_of(status),
        (readable and line[:LONGEST]) or f"the backend answered HTTP {status}",
        origin=Origin.BACKEND,
        detail=f"HTTP {status}: {text[:LONGEST]}",
        retry_after=retry_seconds(headers),
    )


def _message(error: Table) -> str:
    """The message of ``error``; of a long one the beginning."""
    data = error.data(MESSAGE)
    if len(data) <= 4 * LONGEST:
        return error.text(MESSAGE)
    return str(data[: 4 * LONGEST], "utf-8", "ignore")


def error_of_response(errors: Sequence[Table]) -> GatewayError:
    """What the ``errors`` of an answer tell: the first one's kind by its code, which servers make
    an HTTP status or leave out, and the messages of all. Raises BAD_REQUEST where one cannot be
    read."""
    code = errors[0].long(CODE)
    told = ""
    for each in errors:
        if len(told) < LONGEST and (message := _message(each)):
            told = f"{told}; {message}" if told else message
    told = told[:LONGEST]
    return GatewayError(
        kind_of(code) if 400 <= code < 600 else Kind.BACKEND_ERROR,
        told or "the backend answered with an error and no message",
        origin=Origin.BACKEND,
        detail=f"code {code}",
    )
