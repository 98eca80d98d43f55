"""Parses requests of HTTP clients and builds the responses.

*Rule 1.* Every response by a handler has an NV-Status. Responses to inferences have an
NV-InferResponse, which for an error contains only the id. A request that reaches no handler gets a
bare response with an empty body.
*Rule 2.* The HTTP status is 200, 400 or 405 only: clients read NV-Status.
*Rule 3.* Spelling and order of the headers are those of the servers.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from infergate.codecs.trtis import text
from infergate.codecs.trtis.checks import Input
from infergate.codecs.trtis.infer_request import Allot
from infergate.codecs.trtis.messages import (
    InferRequestHeader,
    InferResponseHeader,
)
from infergate.codecs.trtis.options import Level
from infergate.codecs.trtis.paths import query_value
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined

ASKS: Final = "nv-inferrequest"
STATUS: Final = "NV-Status"
_NUMBER: Final = " request_id: "
ANSWERS: Final = "NV-InferResponse"
MISSING: Final = "The request header should contain 'NV-InferRequest'"
_STRING: Final = re.compile(r"""(["'])(?:[^\\"']++|\\.|(?!\1)["'])*+\1""")
_ID: Final = re.compile(r"(?<!\w)id\s*:\s*([0-9]{1,20})(?!\w)")
MAX_RESPONSE_HEADER: Final = 100 * 1024
"""The longest header line that libcurl, and therefore the real clients, accept."""
_AROUND_LINE: Final = 64
"""The header name, an id that is appended later, and the line end."""
_TYPE: Final = "Content-Type"
_BINARY_TYPE: Final = "application/octet-stream"
_TEXT_TYPE: Final = "text/plain"
_JSON_TYPE: Final = "application/json"


class Form(enum.Enum):
    """The format in which a client wants a message."""

    TEXT = "text"
    BINARY = "binary"
    JSON = "json"


def form_of(wire: HttpRequest) -> Form:
    """Return the format in the query; anything but ``binary`` means text."""
    return Form.BINARY if query_value(wire.query, "format") == "binary" else Form.TEXT


def status_form_of(wire: HttpRequest, level: Level) -> Form:
    """Return the format of a status response, which may also be JSON."""
    requested = query_value(wire.query, "format")
    wants_json = requested == "json" or (not requested and wire.headers.get("accept") == _JSON_TYPE)
    return Form.JSON if wants_json and level.tells_json else form_of(wire)


# ---- inferences


class UnreadableHeader(GatewayError):  # noqa: N818
    """NV-InferRequest is not a valid InferRequestHeader."""

    def __init__(self, why: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"NV-InferRequest cannot be parsed: {why[:200]}")


def read_header(wire: HttpRequest, limits: Limits) -> Any:
    """Parse NV-InferRequest. The message must not be modified. Raises BAD_REQUEST, and
    NeedsOffloadError on the event loop."""
    header_text = wire.headers.get(ASKS)
    if header_text is None:
        raise bad_request(MISSING)
    check_loop(limits, len(header_text), text.LONGEST_ON_LOOP)
    try:
        return text.read(InferRequestHeader, header_text)
    except ValueError as error:
        raise UnreadableHeader(str(error)) from None


def allot(body: Sequence[Buffer]) -> Allot:
    """Return a splitter that takes the data of the inputs one after another from ``body``, without
    copying if it is in one part."""
    return partial(_slices, body)


def _slices(body: Sequence[Buffer], inputs: Sequence[Input], model: str) -> Sequence[Buffer]:
    data = memoryview(joined(body))
    parts: list[Buffer] = []
    position = 0
    for tensor in inputs:
        missing = position + tensor.size - len(data)
        if missing > 0:
            raise bad_request(
                f"unexpected size for input '{tensor.name}', expecting {missing} bytes "
                f"for model '{model}'"
            )
        parts.append(data[position : position + tensor.size])
        position += tensor.size
    if position < len(data):
        raise bad_request(f"unexpected additional input data for model '{model}'")
    return parts


def _status_line(status: Any) -> str:
    """Print NV-Status. Everything but the request number is cached: the number comes last and
    differs each time."""
    number = status.request_id
    status.ClearField("request_id")
    return f"{text.line(status)}{_NUMBER}{number}"


def numbered(wire: HttpResponse, number: int) -> HttpResponse:
    """Return ``wire``, a response of ``infer_response`` or ``relayed_response``, with another
    number."""
    status, separator, _ = wire.headers[STATUS].rpartition(_NUMBER)
    return replace(wire, headers={**wire.headers, STATUS: f"{status}{separator}{number}"})


def inference(header: Any, raw: Sequence[Buffer], form: Form, status: Any) -> HttpResponse:
    """Return a response with the raw data, followed by the whole header. Raises UNSUPPORTED."""
    header_text, trailer = repeatable(header, form)
    headers = {ANSWERS: header_text, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, [*(part for part in raw if len(part)), trailer])


def repeatable(header: Any, form: Form) -> tuple[str, bytes]:
    """Return ``header`` as the response header and as the trailer after the data. Raises
    UNSUPPORTED for more classes than clients accept."""
    if header.ByteSize() > MAX_RESPONSE_HEADER:  # the text is longer
        raise _too_many_classes(header.ByteSize())
    header_text = text.line(header)
    if len(header_text) + _AROUND_LINE > MAX_RESPONSE_HEADER:
        raise _too_many_classes(len(header_text))
    return header_text, _TELL[form](header)


def _too_many_classes(length: int) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the response needs at least {length} bytes in the header {ANSWERS}, clients accept "
        f"{MAX_RESPONSE_HEADER}; request fewer classes",
    )


def repeated(  # noqa: PLR0913, PLR0917 - the parts of a response
    header: str, trailer: bytes, id_: int, form: Form, data: Sequence[Buffer], status: Any
) -> HttpResponse:
    """Return a response from the parts that ``render_header`` made. The id is the last field in
    every format."""
    if id_:
        header = f"{header} id: {id_}"
        trailer += _TELL[form](InferResponseHeader(id=id_))
    headers = {ANSWERS: header, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, [*data, trailer])


def relayed(header: str, body: Sequence[Buffer], status: Any) -> HttpResponse:
    """Return a response with a server's own ``header`` and ``body``."""
    headers = {ANSWERS: header, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, body)


def refused_inference(
    wire: HttpRequest, error: GatewayError, status: Callable[[], Any]
) -> HttpResponse:
    """Return the response to ``wire`` for ``error``; without a status if the header cannot be
    parsed."""
    if ASKS not in wire.headers:
        return HttpResponse(400, {_TYPE: _TEXT_TYPE}, [MISSING.encode()])
    if isinstance(error, UnreadableHeader):
        return bare(400)
    try:
        id_ = _id_of(wire.headers[ASKS])
    except ValueError:
        return bare(400)
    header_text = text.line(InferResponseHeader(id=id_))
    return HttpResponse(
        400, {ANSWERS: header_text, STATUS: _status_line(status()), _TYPE: _BINARY_TYPE}
    )


def _id_of(told: str) -> int:
    """Return the id in a header. A long header is searched for the id without being parsed. Raises
    ValueError if a short one cannot be parsed."""
    if len(told) <= text.LONGEST_ON_LOOP:
        return int(text.read(InferRequestHeader, told).id)
    ids = _ID.findall(_STRING.sub("", told))
    id_ = int(ids[-1]) if ids else 0
    return id_ if id_ < 2**64 else 0


# ---- other responses


def _text(message: Any) -> bytes:
    return text.lines(message).encode()


def _binary(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _json(message: Any) -> bytes:
    document = MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


_TELL: Final[Mapping[Form, Callable[[Any], bytes]]] = {
    Form.TEXT: _text,
    Form.BINARY: _binary,
    Form.JSON: _json,
}


def told(message: Any, form: Form, status: Any) -> HttpResponse:
    """Return a response with ``message`` as the body."""
    body = [_TELL[form](message)]
    if form is Form.BINARY:
        return HttpResponse(200, {_TYPE: _BINARY_TYPE, STATUS: _status_line(status)}, body)
    return HttpResponse(200, {STATUS: _status_line(status), _TYPE: _TEXT_TYPE}, body)


def empty(status: Any, *, ok: bool) -> HttpResponse:
    """Return a response that consists of the status."""
    return HttpResponse(200 if ok else 400, {STATUS: _status_line(status), _TYPE: _TEXT_TYPE})


def bare(status: int) -> HttpResponse:
    """Return the response to a request that reached no handler."""
    return HttpResponse(status, {_TYPE: _TEXT_TYPE}, reason="Not Allowed" if status == 405 else "")
