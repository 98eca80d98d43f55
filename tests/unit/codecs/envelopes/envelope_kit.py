"""Shorthands for requests to envelopes."""

import json
from typing import Any

import pytest

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata
from infergate.core.wire import HttpRequest, HttpResponse, join_parts


def post(path: str, body: Any = b"", **headers: str) -> HttpRequest:
    """Return a POST request. A body that is not bytes is encoded as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("POST", path, "", wire_headers, [data])


def get(path: str) -> HttpRequest:
    return HttpRequest("GET", path)


def parse(codec: Any, wire: HttpRequest, metadata: ModelMetadata | None = None) -> ParsedRequest:
    parsed = codec.parse_request(wire, DEFAULT_LIMITS)
    if isinstance(parsed, PartialInferRequest):
        assert metadata is not None
        parsed = parsed.complete(metadata)
    assert isinstance(parsed, ParsedRequest)
    return parsed


def refused(
    codec: Any,
    wire: HttpRequest,
    mentions: str,
    kind: Kind = Kind.BAD_REQUEST,
    metadata: ModelMetadata | None = None,
) -> HttpResponse:
    """Return the response to ``wire``, whose error mentions a text."""
    with pytest.raises(GatewayError) as caught:
        parse(codec, wire, metadata)
    assert mentions in caught.value.public
    assert caught.value.kind is kind
    response = codec.build_error(caught.value, wire)
    assert isinstance(response, HttpResponse)
    return response


def body(response: HttpResponse) -> Any:
    """Return the JSON of a response."""
    return json.loads(bytes(join_parts(response.body)))
