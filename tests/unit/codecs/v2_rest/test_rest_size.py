"""How long an answer in JSON is, as it is told before it is written."""

from __future__ import annotations

from hypothesis import given, reject

from infergate.codecs.base import Parsed
from infergate.codecs.registry import plugins
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor
from infergate.core.wire import size
from infergate.testing.strategies import tensors

_HEAD = 2000
"""Bytes of names, shapes and the like."""


@given(tensor=tensors())
def test_it_is_between_the_bounds(tensor: Tensor) -> None:
    codec = plugins()["v2-rest"].make({})
    answer, parsed = InferResponse("m", outputs=(tensor,)), Parsed(InferRequest("m"))
    least, most = codec.size_out(answer, parsed)  # type: ignore[attr-defined]
    try:
        written = size(codec.build_response(answer, parsed).body)
    except GatewayError:  # of a parameter that JSON cannot tell
        reject()
    assert least <= written <= most + _HEAD


def test_a_refusal_names_the_key_of_its_limit_once() -> None:
    call, error = Call("", 0.0), GatewayError(Kind.TOO_LARGE, "it is too long", limit="body")
    call.fail(error)
    call.fail(error)
    assert (error.public, call.error) == ("it is too long (limits.body)",) * 2
    other = GatewayError(Kind.OVERLOADED, "full", limit="transport.guard.MOST_STREAMS")
    call.fail(other)
    assert other.public == "full", "that is not configured"
