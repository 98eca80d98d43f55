"""Build, parse and check wire messages of V2 REST."""

from typing import Any

import pytest

from infergate.codecs.base import ParsedRequest
from infergate.codecs.v2_rest import PLUGIN
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

CODEC = PLUGIN.create({})
REQUEST = InferRequest("m")


def post(body: bytes | str, path: str = "/v2/models/m/infer", **headers: str) -> HttpRequest:
    data = body.encode() if isinstance(body, str) else body
    wire_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("POST", path, "", wire_headers, [data])


def get(path: str) -> HttpRequest:
    return HttpRequest("GET", path)


def ok(body: bytes | str, status: int = 200, **headers: str) -> HttpResponse:
    data = body.encode() if isinstance(body, str) else body
    wire_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status, wire_headers, [data])


def infer(datatype: str, shape: Any, data: str) -> HttpRequest:
    """Return an inference request with the input X."""
    return post(
        f'{{"inputs":[{{"name":"X","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}'
    )


def parse(wire: HttpRequest) -> InferRequest:
    operation = CODEC.parse_request(wire, DEFAULT_LIMITS).operation
    assert isinstance(operation, InferRequest)
    return operation


def parse_one(datatype: str, shape: Any, data: str) -> Tensor:
    (tensor,) = parse(infer(datatype, shape, data)).inputs
    return tensor


def read_response(wire: HttpResponse, request: InferRequest = REQUEST) -> InferResponse:
    response = CODEC.parse_response(wire, request, DEFAULT_LIMITS)
    assert isinstance(response, InferResponse)
    return response


def respond(response: InferResponse) -> HttpResponse:
    """Build the wire message of ``response`` to a request that selects no format."""
    return CODEC.build_response(response, ParsedRequest(REQUEST))


def body(wire: HttpRequest | HttpResponse) -> bytes:
    return bytes(join_parts(wire.body))


def refused(wire: HttpRequest, *mentions: str, kind: Kind = Kind.BAD_REQUEST) -> GatewayError:
    """Return the error of ``wire``, and check that the parser and the validation report the same
    error.
    """
    with pytest.raises(GatewayError) as caught:
        CODEC.parse_request(wire, DEFAULT_LIMITS)
    with pytest.raises(GatewayError) as invalid:
        CODEC.validate(wire, DEFAULT_LIMITS)
    assert invalid.value.public == caught.value.public
    assert caught.value.kind is kind, caught.value
    for mention in mentions:
        assert mention in caught.value.public
    return caught.value
