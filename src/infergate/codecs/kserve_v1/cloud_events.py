"""Extracts requests from CloudEvents, and wraps responses in CloudEvents. Servers receive plain
requests. An event is in binary mode (``ce-`` headers) or in structured mode (one JSON object).

*Rule 1.* A request in binary mode has the four required headers and any content type. Its response
is in binary mode. A request in structured mode has the content type
``application/cloudevents+json``. Its response is in structured mode. A JSON object that has another
content type and all ``_KSERVE_ATTRIBUTES`` is also a structured event, but its response is plain.

*Rule 2.* The event of a response has KServe's source and type. The event's id depends only on the
request's source and id, so the responses to a repeated request have the same id. The event's time
is the request's time, because codecs have no clock."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson
import simdjson

from infergate.codecs.json_tensors.json_document import (
    MAX_SLOW_BYTES_ON_LOOP,
    ObjectMembers,
    check_nesting,
    member_names,
    parse_with_stdlib,
)
from infergate.codecs.kserve_v1.errors import JSON_HEADERS
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.records import record
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse

EVENT_TYPE: Final = "application/cloudevents+json"
_ATTRIBUTES: Final = ("specversion", "id", "source", "type")
_KSERVE_ATTRIBUTES: Final = (*_ATTRIBUTES, "time", "data")
"""The members by which KServe recognizes a JSON object as an event."""
_VERSIONS: Final = frozenset({"1.0", "0.3"})
_MAX_CHARACTERS: Final = 8192
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "").replace('"', "")


@record
class Event:
    """The mode of a request's event, and the ``id`` and ``time`` of the response's event."""

    is_structured: bool
    id: str
    time: str = ""


@dataclass
class EventRequest(HttpRequest):
    """A validated request, extracted from ``event`` unless ``event`` is None."""

    event: Event | None = None


def media_type(headers: Mapping[str, str]) -> str:
    """Return the content type in lower case, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def read_binary_event(headers: Mapping[str, str]) -> Event | None:
    """Return the event in ``headers``, or None. Raises BAD_REQUEST for an invalid attribute."""
    attributes = {name: headers.get(f"ce-{name}") for name in _ATTRIBUTES}
    if None in attributes.values():
        return None
    return _event(attributes, headers.get("ce-time", ""), is_structured=False)


def read_structured_event(
    text: bytes, headers: Mapping[str, str], limits: Limits
) -> tuple[bytes, Event | None] | None:
    """Return the data and the :class:`Event` of the structured event ``text``. The :class:`Event`
    is None if the response must be plain. Return None if ``text`` is not an event. Raises
    BAD_REQUEST, TOO_LARGE and NeedsOffloadError."""
    is_declared = media_type(headers) == EVENT_TYPE
    if not (is_declared or b'"specversion"' in text):
        return None
    try:
        document: Any = simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        if not is_declared:
            return None  # the parser of the body reports the error
        document = parse_as_kserve(text, limits)
    if not isinstance(document, simdjson.Object | dict):
        return None
    if not (is_declared or all(name in document for name in _KSERVE_ATTRIBUTES)):
        return None
    _check_names(document, text)
    attributes = {name: document.get(name) for name in (*_ATTRIBUTES, "time")}
    event = _event(attributes, attributes.pop("time") or "", is_structured=True)
    return _event_data(document), event if is_declared else None


def _check_names(document: Any, text: bytes) -> None:
    """Raise BAD_REQUEST if the event ``document``, parsed from ``text``, has duplicate members."""
    if isinstance(document, simdjson.Object):
        member_names(document, "the event")  # the parser of the data checks the data's members
        return
    members = parse_with_stdlib(text)  # orjson would drop duplicates
    member_names(members, "the event")
    data = dict(members).get("data")
    if isinstance(data, ObjectMembers):
        member_names(data, "the body")


def parse_as_kserve(text: bytes, limits: Limits) -> Any:
    """Parse JSON with KServe's parser, which has KServe's error texts and converts integers over 64
    bits to floats. Raises BAD_REQUEST, TOO_LARGE and NeedsOffloadError."""
    check_loop_cost(limits, len(text), MAX_SLOW_BYTES_ON_LOOP)
    try:
        check_nesting(text, limits)
    except GatewayError as error:
        raise error.reworded(f"Unrecognized request format: {error.public}") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"Unrecognized request format: {error}") from None


def _event(attributes: Mapping[str, Any], time: Any, *, is_structured: bool) -> Event:
    for name, value in (*attributes.items(), ("time", time)):
        if type(value) is not str or len(value) > _MAX_CHARACTERS:
            raise bad_request(
                f"Cloud Event Exceptions: the attribute '{name}' must be a string of at most "
                f"{_MAX_CHARACTERS} characters"
            )
    version = attributes["specversion"]
    if version not in _VERSIONS:
        raise bad_request(f"Cloud Event Exceptions: Found invalid specversion {version[:40]}")
    names = f"{attributes['source']}\n{attributes['id']}"
    return Event(is_structured, str(uuid.uuid5(uuid.NAMESPACE_URL, names)), time)


def _event_data(document: Any) -> bytes:
    """Return the data of a structured event as JSON text. Raises BAD_REQUEST."""
    data = document.get("data")
    encoded = document.get("data_base64")
    if data is None and type(encoded) is str:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("Cloud Event Exceptions: data_base64 is not base64") from None
    if isinstance(data, simdjson.Object | simdjson.Array):
        return bytes(data.mini)  # type: ignore[arg-type]  # the stubs say str
    if data is None:
        raise bad_request("Cloud Event Exceptions: the event has no data")
    return orjson.dumps(data)


def wrap_response(body: list[Buffer], model: str, event: Event | None) -> HttpResponse:
    """Return a response with the JSON ``body``, in an event if ``event`` is not None."""
    if event is None:
        return HttpResponse(200, JSON_HEADERS, body)
    attributes = {
        "specversion": "1.0",
        "id": event.id,
        # The source is a URI and, in binary mode, a header, so the name is quoted.
        "source": f"io.kserve.inference.{quote(model, safe=_PRINTABLE, errors='replace')}",
        "type": "io.kserve.inference.response",
        **({"time": event.time} if event.time else {}),
    }
    if event.is_structured:
        head = orjson.dumps(attributes)[:-1] + b',"data":'
        return HttpResponse(200, {"content-type": EVENT_TYPE}, [head, *body, b"}"])
    headers = {f"ce-{name}": value for name, value in attributes.items()}
    return HttpResponse(200, {**JSON_HEADERS, **headers}, body)
