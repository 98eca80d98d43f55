"""Parses requests of HTTP clients and builds the responses.

A response has the header NV-Status, except if no handler of legacy servers matches the request or
if NV-InferRequest cannot be parsed. The response to an inference then also has NV-InferResponse,
which contains only the id if the inference failed. The HTTP status is always 200, 400 or 405.
Headers have the spelling and the order of legacy servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from infergate.codecs.protos.wire_scanner import varint_field
from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.header_checks import CheckedInput
from infergate.codecs.trtis.http_paths import query_value
from infergate.codecs.trtis.messages import BodyFormat, InferRequestHeader, InferResponseHeader
from infergate.codecs.trtis.options import CompatibilityLevel
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, join_parts, total_size

REQUEST_HEADER: Final = "nv-inferrequest"
STATUS_HEADER: Final = "NV-Status"
_REQUEST_ID: Final = " request_id: "
RESPONSE_HEADER: Final = "NV-InferResponse"
BINARY_QUERY: Final = "format=binary"
"""The query that requests a binary response."""
MISSING_HEADER: Final = "The request header should contain 'NV-InferRequest'"
_STRING: Final = re.compile(r"""(["'])(?:[^\\"']++|\\.|(?!\1)["'])*+\1""")
_ID_FIELD: Final = 5
"""The field number of InferResponseHeader.id."""
_ID: Final = re.compile(r"(?<!\w)id\s*:\s*([0-9]{1,20})(?!\w)")
MAX_RESPONSE_HEADER: Final = 100 * 1024
"""Maximum size in bytes of a header line in libcurl, which the legacy clients use."""
_LINE_OVERHEAD: Final = 64
"""Maximum size in bytes of the header's name, the id and the line end. The id is appended later."""
_TYPE: Final = "Content-Type"
_BINARY_TYPE: Final = "application/octet-stream"
_TEXT_TYPE: Final = "text/plain"
_JSON_TYPE: Final = "application/json"


def body_format_of(wire: HttpRequest) -> BodyFormat:
    """Return the format that the query requests. Text is the default."""
    query = wire.query
    is_binary = query == BINARY_QUERY or query_value(query, "format") == "binary"
    return BodyFormat.BINARY if is_binary else BodyFormat.TEXT


def status_format_of(wire: HttpRequest, level: CompatibilityLevel) -> BodyFormat:
    """Return the requested format of a server status. Some releases support JSON."""
    requested = query_value(wire.query, "format")
    wants_json = requested == "json" or (not requested and wire.headers.get("accept") == _JSON_TYPE)
    return BodyFormat.JSON if wants_json and level.has_json_status else body_format_of(wire)


# ---- inferences


class UnreadableHeaderError(GatewayError):
    """NV-InferRequest is not a valid InferRequestHeader."""

    def __init__(self, reason: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"NV-InferRequest cannot be parsed: {reason[:200]}")


def parse_header(wire: HttpRequest, limits: Limits) -> Any:
    """Parse NV-InferRequest. The caller must not modify the result. Raises BAD_REQUEST and
    NeedsOffloadError."""
    header_text = wire.headers.get(REQUEST_HEADER)
    if header_text is None:
        raise bad_request(MISSING_HEADER)
    check_loop_cost(limits, len(header_text), text_format.MAX_ON_LOOP)
    try:
        return text_format.parse(InferRequestHeader, header_text)
    except ValueError as error:
        raise UnreadableHeaderError(str(error)) from None


def split_inputs(
    body: Sequence[Buffer], inputs: Sequence[CheckedInput], model: str
) -> Sequence[Buffer]:
    """Split ``body`` into consecutive slices, one per input. Raises BAD_REQUEST."""
    remaining = total_size(body)
    for tensor in inputs:
        remaining -= tensor.size
        if remaining < 0:
            raise bad_request(
                f"unexpected size for input '{tensor.name}', expecting {-remaining} bytes "
                f"for model '{model}'"
            )
    if remaining > 0:
        raise bad_request(f"unexpected additional input data for model '{model}'")
    return slice_body(body, [tensor.size for tensor in inputs])


def slice_body(body: Sequence[Buffer], sizes: Sequence[int]) -> list[Buffer]:
    """Split ``body``, which has at least the sum of ``sizes`` bytes, into consecutive slices."""
    view = memoryview(join_parts(body))
    parts: list[Buffer] = []
    position = 0
    for size in sizes:
        parts.append(view[position : position + size])
        position += size
    return parts


def _status_line(status: Any) -> str:
    """Return ``status`` as the value of NV-Status, and clear its ``request_id``. The request number
    is appended separately, because ``to_line`` caches its result."""
    number = status.request_id
    status.ClearField("request_id")
    return f"{text_format.to_line(status)}{_REQUEST_ID}{number}"


def with_number(wire: HttpResponse, number: int) -> HttpResponse:
    """Return ``wire``, a response to an inference, with the request number ``number``."""
    status, separator, _ = wire.headers[STATUS_HEADER].rpartition(_REQUEST_ID)
    return replace(wire, headers={**wire.headers, STATUS_HEADER: f"{status}{separator}{number}"})


def infer_response(
    header: Any, raw: Sequence[Buffer], body_format: BodyFormat, status_line: str
) -> HttpResponse:
    """Return a response whose body is the raw data, followed by the header. ``status_line`` is the
    value of NV-Status. Raises UNSUPPORTED."""
    header_text, trailer = render_header(header, body_format)
    body = [*(part for part in raw if len(part)), trailer]
    return relayed_response(header_text, body, status_line)


def render_header(header: Any, body_format: BodyFormat) -> tuple[str, bytes]:
    """Return ``header`` as the value of NV-InferResponse, and as the trailer that follows the data.
    Raises UNSUPPORTED if NV-InferResponse is longer than clients accept."""
    if header.ByteSize() > MAX_RESPONSE_HEADER:  # the text is longer than the message
        raise _too_many_classes(header.ByteSize())
    header_text = text_format.to_line(header)
    if len(header_text) + _LINE_OVERHEAD > MAX_RESPONSE_HEADER:
        raise _too_many_classes(len(header_text))
    return header_text, _WRITERS[body_format](header)


def _too_many_classes(length: int) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the response needs at least {length} bytes in the header {RESPONSE_HEADER}, "
        f"but clients accept {MAX_RESPONSE_HEADER}; request fewer classes",
    )


def rendered_response(  # noqa: PLR0913, PLR0917 - a parameter per part of a response
    header: str,
    trailer: bytes,
    id_: int,
    body_format: BodyFormat,
    data: Sequence[Buffer],
    status_line: str,
) -> HttpResponse:
    """Return a response with ``header`` and ``trailer`` from ``render_header``. ``id_`` is appended
    to both."""
    if id_:
        header = f"{header} id: {id_}"
        trailer += (
            varint_field(_ID_FIELD, id_)
            if body_format is BodyFormat.BINARY
            else _WRITERS[body_format](InferResponseHeader(id=id_))
        )
    return relayed_response(header, [*data, trailer], status_line)


def relayed_response(
    header: str, body: Sequence[Buffer], status_line: str, status: int = 200
) -> HttpResponse:
    """Return a response with the text ``header`` as NV-InferResponse, and with ``body``."""
    headers = {RESPONSE_HEADER: header, STATUS_HEADER: status_line, _TYPE: _BINARY_TYPE}
    return HttpResponse(status, headers, body)


def infer_error(
    wire: HttpRequest, error: GatewayError, create_status: Callable[[], Any]
) -> HttpResponse:
    """Return the response for ``error``. If NV-InferRequest is missing or invalid, the response has
    no NV-Status."""
    if REQUEST_HEADER not in wire.headers:
        return HttpResponse(400, {_TYPE: _TEXT_TYPE}, [MISSING_HEADER.encode()])
    if isinstance(error, UnreadableHeaderError):
        return bare_response(400)
    try:
        id_ = _request_id(wire.headers[REQUEST_HEADER])
    except ValueError:
        return bare_response(400)
    header_text = text_format.to_line(InferResponseHeader(id=id_))
    return relayed_response(header_text, (), _status_line(create_status()), 400)


def _request_id(header_text: str) -> int:
    """Return the id in a header. A long header is searched instead of parsed. Raises ValueError if
    a short header cannot be parsed."""
    if len(header_text) <= text_format.MAX_ON_LOOP:
        return int(text_format.parse(InferRequestHeader, header_text).id)
    ids = _ID.findall(_STRING.sub("", header_text))
    id_ = int(ids[-1]) if ids else 0
    return id_ if id_ < 2**64 else 0


# ---- other responses


def _text(message: Any) -> bytes:
    return text_format.to_lines(message).encode()


def _binary(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _json(message: Any) -> bytes:
    document = MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


_WRITERS: Final[Mapping[BodyFormat, Callable[[Any], bytes]]] = {
    BodyFormat.TEXT: _text,
    BodyFormat.BINARY: _binary,
    BodyFormat.JSON: _json,
}


def message_response(message: Any, body_format: BodyFormat, status: Any) -> HttpResponse:
    """Return a response with ``message`` as the body."""
    body = [_WRITERS[body_format](message)]
    if body_format is BodyFormat.BINARY:
        return HttpResponse(200, {_TYPE: _BINARY_TYPE, STATUS_HEADER: _status_line(status)}, body)
    return HttpResponse(200, {STATUS_HEADER: _status_line(status), _TYPE: _TEXT_TYPE}, body)


def status_response(status: Any, *, ok: bool) -> HttpResponse:
    """Return a response that consists of ``status``."""
    return HttpResponse(
        200 if ok else 400, {STATUS_HEADER: _status_line(status), _TYPE: _TEXT_TYPE}
    )


def bare_response(status: int) -> HttpResponse:
    """Return a response without NV-Status."""
    return HttpResponse(status, {_TYPE: _TEXT_TYPE}, reason="Not Allowed" if status == 405 else "")
