"""Helpers that build, parse and check the messages of the envelope codecs."""

import json
from typing import Any

import gateway_errors
from infergate.codecs.base import ParsedRequest
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing.vectors import completed


def post(path: str, body: Any = b"", **headers: str) -> HttpRequest:
    """Return a POST request. A body that is not bytes is encoded as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("POST", path, "", wire_headers, [data])


def get(path: str) -> HttpRequest:
    return HttpRequest("GET", path)


def parse(codec: Any, wire: HttpRequest, metadata: ModelMetadata | None = None) -> ParsedRequest:
    parsed: ParsedRequest = completed(codec.parse_request(wire, DEFAULT_LIMITS), metadata)
    return parsed


def assert_refused(
    codec: Any,
    wire: HttpRequest,
    mentions: str,
    kind: Kind = Kind.BAD_REQUEST,
    metadata: ModelMetadata | None = None,
) -> HttpResponse:
    """Check that ``wire`` is refused with ``mentions`` in the text, and return the response."""
    error = gateway_errors.refused(parse, codec, wire, metadata)
    assert mentions in error.public
    assert error.kind is kind
    response: HttpResponse = codec.build_error(error, wire)
    return response


def body(response: HttpResponse) -> Any:
    """Return the JSON of a response."""
    return json.loads(bytes(join_parts(response.body)))
