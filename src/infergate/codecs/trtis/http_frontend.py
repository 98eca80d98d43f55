"""How HTTP clients are read and answered.

*Rule 1.* Every answer that a handler made has an NV-Status; inferences have an NV-InferResponse,
which of an error tells the id alone. Answers of no handler are bare, and have an empty body.
*Rule 2.* The status is 200, 400 or 405, nothing else: clients read NV-Status.
*Rule 3.* Headers are spelled and ordered as the servers do it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
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
from infergate.core.errors import GatewayError, bad_request
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined

ASKS: Final = "nv-inferrequest"
STATUS: Final = "NV-Status"
ANSWERS: Final = "NV-InferResponse"
MISSING: Final = "The request header should contain 'NV-InferRequest'"
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


def read_header(wire: HttpRequest) -> Any:
    """What NV-InferRequest says; not to be changed. Raises BAD_REQUEST."""
    told = wire.headers.get(ASKS)
    if told is None:
        raise bad_request(MISSING)
    try:
        return text.read(InferRequestHeader, told)
    except ValueError as error:
        raise bad_request(f"NV-InferRequest cannot be read: {str(error)[:200]}") from None


def allot(body: Sequence[Buffer]) -> Allot:
    """The inputs' data, one after another, from ``body``; not copied where it is one piece."""

    def slices(inputs: Sequence[Input], model: str) -> Sequence[Buffer]:
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

    return slices


def _status_line(status: Any) -> str:
    """All but its number, which comes last and is another each time, is printed as before."""
    number = status.request_id
    status.ClearField("request_id")
    return f"{text.line(status)} request_id: {number}"


def inference(header: Any, raw: Sequence[Buffer], form: Form, status: Any) -> HttpResponse:
    """The raw data, and after it always the whole header."""
    return HttpResponse(
        200,
        {ANSWERS: text.line(header), STATUS: _status_line(status), _TYPE: _BINARY_TYPE},
        [*(part for part in raw if len(part)), _TELL[form](header)],
    )


def repeatable(header: Any, form: Form) -> tuple[str, bytes]:
    """``header``, which has no id, as the header of an answer and as what follows its data."""
    return text.line(header), _TELL[form](header)


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


def refused_inference(wire: HttpRequest, status: Callable[[], Any]) -> HttpResponse:
    """In answer to ``wire``; without a status where its header cannot be read."""
    try:
        header = read_header(wire)
    except GatewayError:
        if ASKS in wire.headers:
            return bare(400)
        return HttpResponse(400, {_TYPE: _TEXT_TYPE}, [MISSING.encode()])
    told = text.line(InferResponseHeader(id=header.id))
    return HttpResponse(400, {ANSWERS: told, STATUS: _status_line(status()), _TYPE: _BINARY_TYPE})


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
