"""Error responses to clients, and the errors in responses of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import flatbuffers

from infergate.codecs.graphpipe.fields import CODE, ERRORS, MESSAGE, OUTPUT_TENSORS
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferTable
from infergate.codecs.graphpipe.flatbuffer_writer import write_offsets, write_table
from infergate.codecs.http_status import (
    MAX_MESSAGE_CHARACTERS,
    STATUS_BY_KIND,
    client_message,
    kind_of_status,
)
from infergate.core.errors import GatewayError, Kind, Origin, error_headers, parse_retry_after
from infergate.core.wire import HttpResponse, join_parts

TEXT_HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/plain; charset=utf-8",
    "x-content-type-options": "nosniff",
}
"""The headers of a text response, as graphpipe-go sends them."""
BINARY_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/octet-stream"}

# ---- for clients


def status_error_response(error: GatewayError) -> HttpResponse:
    """Return a text response with the error message and, as in graphpipe-go, a line feed. Never
    raises."""
    return HttpResponse(
        STATUS_BY_KIND[error.kind],
        {**TEXT_HEADERS, **error_headers(error)},
        [client_message(error.public).encode() + b"\n"],
    )


def infer_error_response(error: GatewayError) -> HttpResponse:
    """Return an InferResponse with one Error and no outputs. Never raises."""
    builder = flatbuffers.Builder(256)
    message = builder.CreateString(client_message(error.public))
    builder.StartObject(2)
    builder.PrependInt64Slot(CODE.slot, STATUS_BY_KIND[error.kind], 0)
    builder.PrependUOffsetTRelativeSlot(MESSAGE.slot, message, 0)
    errors = write_offsets(builder, [builder.EndObject()])
    outputs = write_offsets(builder, [])
    builder.Finish(write_table(builder, {OUTPUT_TENSORS: outputs, ERRORS: errors}))
    return HttpResponse(200, BINARY_HEADERS, [bytes(builder.Output())])


# ---- from backends


def error_of_status(wire: HttpResponse) -> GatewayError:
    """Return the error in a response. The error's text is the first line of the body, or names only
    the status if the body is empty, binary or an HTML page."""
    body = bytes(join_parts(wire.body)[: 4 * MAX_MESSAGE_CHARACTERS])
    text = body.decode("utf-8", "replace").strip()
    line = text.partition("\n")[0].strip()
    readable = line.isprintable() and not line.startswith("<")
    return GatewayError(
        kind_of_status(wire.status),
        (readable and line[:MAX_MESSAGE_CHARACTERS])
        or f"the backend responded with HTTP {wire.status}",
        origin=Origin.BACKEND,
        detail=f"HTTP {wire.status}: {text[:MAX_MESSAGE_CHARACTERS]}",
        retry_after=parse_retry_after(wire.headers),
    )


def _error_text(error: FlatbufferTable) -> str:
    """Return the message of ``error``, truncated if it is long."""
    data = error.data(MESSAGE)
    if len(data) <= 4 * MAX_MESSAGE_CHARACTERS:
        return error.text(MESSAGE)
    return str(data[: 4 * MAX_MESSAGE_CHARACTERS], "utf-8", "ignore")


def error_of_response(errors: Sequence[FlatbufferTable]) -> GatewayError:
    """Return an error with the messages of all ``errors`` in a response. The code of the first
    error, an HTTP status or 0, determines the kind. Raises BAD_REQUEST and TOO_LARGE."""
    code = errors[0].int64(CODE)
    messages = ""
    for error in errors:
        if len(messages) < MAX_MESSAGE_CHARACTERS and (message := _error_text(error)):
            messages = f"{messages}; {message}" if messages else message
    messages = messages[:MAX_MESSAGE_CHARACTERS]
    return GatewayError(
        kind_of_status(code) if 400 <= code < 600 else Kind.BACKEND_ERROR,
        messages or "the backend returned an error without a message",
        origin=Origin.BACKEND,
        detail=f"code {code}",
    )
