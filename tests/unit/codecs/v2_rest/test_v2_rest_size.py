"""Estimates of the size of JSON responses, and the text of errors about sizes."""

from hypothesis import given, reject

from infergate.codecs.base import ParsedRequest
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.core.wire import total_size
from infergate.testing.strategies import tensors

_HEAD = 2000
"""Bytes for names, shapes and similar fields."""


@given(tensor=tensors())
def test_the_estimate_is_within_its_bounds(tensor: Tensor) -> None:
    codec = plugins()["v2-rest"].create({})
    response, parsed = InferResponse("m", outputs=(tensor,)), ParsedRequest(InferRequest("m"))
    lower, upper = codec.response_size(response, parsed)  # type: ignore[attr-defined]
    try:
        size = total_size(codec.build_response(response, parsed).body)
    except GatewayError:  # JSON cannot represent a parameter
        reject()
    assert lower <= size <= upper + _HEAD


def test_a_rejection_names_its_limit_once() -> None:
    call = RequestContext("")
    error = GatewayError(Kind.TOO_LARGE, "it is too long", limit="body")
    call.record.record_error(error)
    call.record.record_error(error)
    assert (error.public, call.record.error) == ("it is too long (limits.body)",) * 2
    other = GatewayError(Kind.OVERLOADED, "full", limit="transport.server.admission.MAX_STREAMS")
    call.record.record_error(other)
    assert other.public == "full"  # the limit is not configurable
