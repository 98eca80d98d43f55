"""Inferences as CloudEvents in the format of KServe's inference logger.

An inference becomes a request event and a response event with the same id; each response of a
stream is an event. For all client protocols, the data is the V2 REST JSON of the canonical request
or response, or of the error. docs/payload-log.md describes every attribute.

Sources: kserve/kserve pkg/logger/worker.go and handler.go; CloudEvents 1.0.2 with its HTTP binding
and JSON format.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from infergate.codecs.base import ParsedRequest
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS
from infergate.codecs.v2_rest.codec import V2RestCodec
from infergate.codecs.v2_rest.errors import STATUS_BY_KIND
from infergate.codecs.v2_rest.tensors import encode_json, write_json_tensor, write_parameters
from infergate.core.exchange import Exchange
from infergate.core.limits import KIB
from infergate.core.messages import InferRequest
from infergate.core.records import record
from infergate.core.wire import join_parts

REQUEST_TYPE: Final = "org.kubeflow.serving.inference.request"
RESPONSE_TYPE: Final = "org.kubeflow.serving.inference.response"
EVENT_ID_HEADER: Final = "ce-id"
"""The request header with the id of the inference's events, as in KServe."""
STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
Mode = Literal["all", "request", "response"]

_JSON_TYPE: Final = "application/json"
_SPELLING: Final = "string"
"""NaN and infinity are strings, because the data must be valid JSON. numpy parses such strings."""
_CODEC: Final = V2RestCodec(_SPELLING, compress_min=0)
_MAX_ATTRIBUTE_CHARACTERS: Final = 1 * KIB
"""Maximum length of an attribute other than ``metadata``, because servers limit the size of
headers."""
_MAX_METADATA_BYTES: Final = 4 * KIB
_EVENT_ID: Final = re.compile(r"[!-~]{1,128}")
_UNSAFE: Final = re.compile("[^ -~]|%|^ | $")
"""Matches the characters that are percent-encoded in a header. The HTTP binding also encodes double
quotes and all spaces, but KServe does not encode them, and the SDKs of some languages do not decode
them."""


@record
class EventAttributes:
    """The attributes that all events of a payload log share. If ``service`` is empty, events
    contain the model name that the client used."""

    source: str
    service: str = ""
    namespace: str = ""
    component: str = ""


@record
class CloudEvent:
    """An event with JSON ``data``. ``attributes`` includes the extension attributes."""

    attributes: Mapping[str, str | int]
    data: bytes


def event_id(headers: Mapping[str, str]) -> str:
    """Return the id of the events of an inference: the client's valid ``ce-id``, or a new id."""
    client_id = headers.get(EVENT_ID_HEADER, "")
    return client_id if _EVENT_ID.fullmatch(client_id) else str(uuid.uuid4())


def event_count(exchange: Exchange, mode: Mode) -> int:
    """Return the number of events that ``make_events`` creates for ``exchange`` and ``mode``."""
    outcome = exchange.outcome
    responses = len(outcome.responses) + (outcome.error is not None)
    return (mode != "response") + (responses if mode != "request" else 0)


def make_events(
    shared: EventAttributes, exchange: Exchange, mode: Mode, id_: str
) -> list[CloudEvent]:
    """Return the events of ``exchange`` in chronological order. Raises UNSUPPORTED if JSON cannot
    express a parameter."""
    attributes = _attributes(shared, exchange, id_)
    events = []
    if mode != "response":
        events.append(CloudEvent(attributes, _request_json(exchange.request)))
    if mode != "request":
        events += _response_events(attributes, exchange)
    return events


def _response_events(
    request_attributes: Mapping[str, str | int], exchange: Exchange
) -> list[CloudEvent]:
    """Return the response events for the request event with ``request_attributes``."""
    outcome = exchange.outcome
    events: list[CloudEvent] = []
    offsets = outcome.offsets or (outcome.duration,)
    parsed = ParsedRequest(exchange.request)

    def add(data: Sequence[Any], offset: float, kind: str, status: int) -> None:
        attributes = {
            **request_attributes,
            "type": RESPONSE_TYPE,
            "time": _rfc_3339(exchange.started_at + offset),
            "outcome": kind,
            "statuscode": status,
            "durationms": round(offset * 1e3),
        }
        if exchange.is_stream:
            attributes["sequence"] = f"{len(events) + 1:08}"
        events.append(CloudEvent(attributes, bytes(join_parts(data))))

    for response, offset in zip(outcome.responses, offsets, strict=False):
        add(_CODEC.build_response(response, parsed).body, offset, "ok", 200)
    if outcome.error is not None:
        body = _CODEC.build_error(outcome.error).body
        add(body, outcome.duration, outcome.kind, STATUS_BY_KIND[outcome.error.kind])
    return events


def _attributes(shared: EventAttributes, exchange: Exchange, id_: str) -> dict[str, str | int]:
    """Return the attributes of the request event."""
    request = exchange.request
    attributes = {
        "specversion": "1.0",
        "id": id_,
        "source": shared.source,
        "type": REQUEST_TYPE,
        "subject": request.model,
        "time": _rfc_3339(exchange.started_at),
        "datacontenttype": _JSON_TYPE,
        "inferenceservicename": shared.service or request.model,
        "namespace": shared.namespace,
        "component": shared.component,
        "endpoint": exchange.backend,
        "metadata": _metadata(exchange.headers),
        "route": exchange.route,
        "protocol": exchange.protocol,
        "requestid": exchange.request_id,
    }
    # Some SDKs reject an extension attribute with an empty value.
    return {
        name: _utf8_safe(value[:_MAX_ATTRIBUTE_CHARACTERS] if name != "metadata" else value)
        for name, value in attributes.items()
        if value
    }


def _utf8_safe(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _rfc_3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _metadata(headers: Mapping[str, str]) -> str:
    """Return ``headers`` as KServe writes them: JSON with a list of values for each name. Headers
    beyond ``_MAX_METADATA_BYTES`` are omitted."""
    chosen: dict[str, list[str]] = {}
    size = 0
    for name, value in headers.items():
        size += len(name) + len(value)
        if size <= _MAX_METADATA_BYTES:
            chosen[name.title()] = [_utf8_safe(value)]
    return orjson.dumps(chosen).decode()


def _request_json(request: InferRequest) -> bytes:
    """Return the V2 JSON of ``request``, without the list of requested outputs: TrustyAI expects
    tensors there, and the response names the outputs."""
    head: dict[str, Any] = {}
    if request.id:
        head["id"] = request.id
    if request.parameters:
        head["parameters"] = write_parameters(request.parameters, "request")
    spelling = NON_FINITE_SPELLINGS[_SPELLING]
    head["inputs"] = [write_json_tensor(tensor, spelling) for tensor in request.inputs]
    return encode_json(head)


# ---- encodings ----------------------------------------------------------------------------------


def binary_message(event: CloudEvent) -> tuple[dict[str, str], bytes]:
    """Return the HTTP headers and the body of ``event`` in binary mode, as KServe sends it."""
    headers = {f"ce-{name}": _header_value(value) for name, value in event.attributes.items()}
    del headers["ce-datacontenttype"]
    headers["content-type"] = _JSON_TYPE
    return headers, event.data


def _header_value(value: str | int) -> str:
    text = str(value)
    return _UNSAFE.sub(_percent_encode, text) if _UNSAFE.search(text) else text


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def structured_json(event: CloudEvent) -> bytes:
    """Return ``event`` in the JSON format, without line breaks."""
    return orjson.dumps({**event.attributes, "data": orjson.Fragment(event.data)})
