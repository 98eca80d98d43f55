"""How HTTP clients are read and answered.

*Rule 1.* Every answer that a handler made has an NV-Status; inferences have an NV-InferResponse,
which of an error tells the id alone. Answers of no handler are bare, and have an empty body.
*Rule 2.* The status is 200, 400 or 405, nothing else: clients read NV-Status.
*Rule 3.* Headers are spelled and ordered as the servers do it.
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
"""Bytes of a header line that libcurl takes, and so the real clients."""
_AROUND_LINE: Final = 64
"""The name, an id that comes later, and the line's end."""
_TYPE: Final = "Content-Type"
_BINARY_TYPE: Final = "application/octet-stream"
_TEXT_TYPE: Final = "text/plain"
_JSON_TYPE: Final = "application/json"


class Form(enum.Enum):
    """How a client wants a message told."""

    TEXT = "text"
    BINARY = "binary"
    JSON = "json"


def form_of(wire: HttpRequest) -> Form:
    """By the query; any other word of it is text."""
    return Form.BINARY if query_value(wire.query, "format") == "binary" else Form.TEXT


def status_form_of(wire: HttpRequest, level: Level) -> Form:
    """Status may be told as JSON as well."""
    asked = query_value(wire.query, "format")
    wants_json = asked == "json" or (not asked and wire.headers.get("accept") == _JSON_TYPE)
    return Form.JSON if wants_json and level.tells_json else form_of(wire)


# ---- inferences


class UnreadableHeader(GatewayError):  # noqa: N818 - it says what the header is
    """NV-InferRequest is no InferRequestHeader."""

    def __init__(self, why: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"NV-InferRequest cannot be read: {why[:200]}")


def read_header(wire: HttpRequest, limits: Limits) -> Any:
    """What NV-InferRequest says; not to be changed. Raises BAD_REQUEST, and CostlyError on the
    event loop."""
    told = wire.headers.get(ASKS)
    if told is None:
        raise bad_request(MISSING)
    check_loop(limits, len(told), text.LONGEST_ON_LOOP)
    try:
        return text.read(InferRequestHeader, told)
    except ValueError as error:
        raise UnreadableHeader(str(error)) from None


def allot(body: Sequence[Buffer]) -> Allot:
    """The inputs' data, one after another, from ``body``; not copied where it is one piece."""
    return partial(_slices, body)


def _slices(body: Sequence[Buffer], inputs: Sequence[Input], model: str) -> Sequence[Buffer]:
    data = memoryview(joined(body))
    found: list[Buffer] = []
    position = 0
    for each in inputs:
        missing = position + each.size - len(data)
        if missing > 0:
            raise bad_request(
                f"unexpected size for input '{each.name}', expecting {missing} bytes "
                f"for model '{model}'"
            )
        found.append(data[position : position + each.size])
        position += each.size
    if position < len(data):
        raise bad_request(f"unexpected additional input data for model '{model}'")
    return found


def _status_line(status: Any) -> str:
    """All but its number, which comes last and is another each time, is printed as before."""
    number = status.request_id
    status.ClearField("request_id")
    return f"{text.line(status)}{_NUMBER}{number}"


def numbered(wire: HttpResponse, number: int) -> HttpResponse:
    """``wire``, an answer of ``inference`` or ``relayed``, with another number."""
    status, between, _ = wire.headers[STATUS].rpartition(_NUMBER)
    return replace(wire, headers={**wire.headers, STATUS: f"{status}{between}{number}"})


def inference(header: Any, raw: Sequence[Buffer], form: Form, status: Any) -> HttpResponse:
    """The raw data, and after it always the whole header. Raises UNSUPPORTED."""
    told, trailer = repeatable(header, form)
    headers = {ANSWERS: told, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, [*(part for part in raw if len(part)), trailer])


def repeatable(header: Any, form: Form) -> tuple[str, bytes]:
    """``header`` as the header of an answer and as what follows its data. Raises UNSUPPORTED for
    more classes than clients take."""
    if header.ByteSize() > MAX_RESPONSE_HEADER:  # the text is longer
        raise _too_many_classes(header.ByteSize())
    told = text.line(header)
    if len(told) + _AROUND_LINE > MAX_RESPONSE_HEADER:
        raise _too_many_classes(len(told))
    return told, _TELL[form](header)


def _too_many_classes(length: int) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the answer takes {length} bytes or more of the header {ANSWERS}, and clients take "
        f"{MAX_RESPONSE_HEADER}: ask for fewer classes",
    )


def repeated(  # noqa: PLR0913, PLR0917 - the parts of an answer
    header: str, trailer: bytes, id_: int, form: Form, data: Sequence[Buffer], status: Any
) -> HttpResponse:
    """An answer of the parts that ``repeatable`` made. The id is the last field in each form."""
    if id_:
        header = f"{header} id: {id_}"
        trailer += _TELL[form](InferResponseHeader(id=id_))
    headers = {ANSWERS: header, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, [*data, trailer])


def relayed(header: str, body: Sequence[Buffer], status: Any) -> HttpResponse:
    """A server's own ``header`` and ``body``."""
    headers = {ANSWERS: header, STATUS: _status_line(status), _TYPE: _BINARY_TYPE}
    return HttpResponse(200, headers, body)


def refused_inference(
    wire: HttpRequest, error: GatewayError, status: Callable[[], Any]
) -> HttpResponse:
    """``error`` in answer to ``wire``; without a status where its header cannot be read."""
    if ASKS not in wire.headers:
        return HttpResponse(400, {_TYPE: _TEXT_TYPE}, [MISSING.encode()])
    if isinstance(error, UnreadableHeader):
        return bare(400)
    try:
        number = _id_of(wire.headers[ASKS])
    except ValueError:
        return bare(400)
    told = text.line(InferResponseHeader(id=number))
    return HttpResponse(400, {ANSWERS: told, STATUS: _status_line(status()), _TYPE: _BINARY_TYPE})


def _id_of(told: str) -> int:
    """The id in a header; of a long one found without reading the rest. Raises ValueError where a
    short one cannot be read."""
    if len(told) <= text.LONGEST_ON_LOOP:
        return int(text.read(InferRequestHeader, told).id)
    found = _ID.findall(_STRING.sub("", told))
    number = int(found[-1]) if found else 0
    return number if number < 2**64 else 0


# ---- the rest


def _text(message: Any) -> bytes:
    return text.lines(message).encode()


def _binary(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _json(message: Any) -> bytes:
    told = MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


_TELL: Final[Mapping[Form, Callable[[Any], bytes]]] = {
    Form.TEXT: _text,
    Form.BINARY: _binary,
    Form.JSON: _json,
}


def told(message: Any, form: Form, status: Any) -> HttpResponse:
    """``message`` as the body."""
    body = [_TELL[form](message)]
    if form is Form.BINARY:
        return HttpResponse(200, {_TYPE: _BINARY_TYPE, STATUS: _status_line(status)}, body)
    return HttpResponse(200, {STATUS: _status_line(status), _TYPE: _TEXT_TYPE}, body)


def empty(status: Any, *, ok: bool) -> HttpResponse:
    """An answer that the status says all of."""
    return HttpResponse(200 if ok else 400, {STATUS: _status_line(status), _TYPE: _TEXT_TYPE})


def bare(status: int) -> HttpResponse:
    """No handler was reached."""
    return HttpResponse(status, {_TYPE: _TEXT_TYPE}, reason="Not Allowed" if status == 405 else "")
