"""Heads assembled from parts equal the heads that the protobuf runtime writes."""

from dataclasses import replace

import pytest
from hypothesis import given

from gateway_errors import raises_kind
from infergate.codecs.profiles import GENERIC
from infergate.codecs.v2_grpc import PLUGIN, head_parts, infer_request, infer_response
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import NO_PARAMETERS, Tensor
from infergate.core.wire import join_parts
from infergate.testing.strategies import infer_requests, infer_responses

CODEC = PLUGIN.create({})
X = Tensor("x", Datatype.FP32, (2,), bytes(8))
Y = Tensor("y", Datatype.BYTES, (), b"\0\0\0\0")
CACHES = (
    head_parts._cached_names,
    head_parts._cached_description,
    head_parts._cached_output,
)


def without_nested_messages(request: InferRequest) -> InferRequest:
    """Return ``request`` without fields that are nested protobuf messages."""
    return replace(
        request,
        parameters=NO_PARAMETERS,
        inputs=tuple(replace(tensor, parameters=NO_PARAMETERS) for tensor in request.inputs),
        outputs=tuple(RequestedOutput(output.name) for output in request.outputs),
    )


@given(infer_requests(frozenset(Datatype)))
def test_request_heads_equal_the_runtimes_heads(message: InferRequest) -> None:
    for request in (message, without_nested_messages(message), without_nested_messages(message)):
        head = infer_request._message_head(request)
        for tensor in request.inputs:
            head.raw_input_contents.append(bytes(tensor.data))
        expected = head.SerializeToString(deterministic=True)
        assert join_parts(infer_request.write_request(request)) == expected


@given(infer_responses(frozenset(Datatype)))
def test_response_heads_equal_the_runtimes_heads(message: InferResponse) -> None:
    outputs = tuple(replace(tensor, parameters=NO_PARAMETERS) for tensor in message.outputs)
    simple = replace(message, parameters=NO_PARAMETERS, outputs=outputs)
    for response in (message, simple, simple):
        head = infer_response._message_head(response)
        for tensor in response.outputs:
            head.raw_output_contents.append(bytes(tensor.data))
        expected = head.SerializeToString(deterministic=True)
        assert join_parts(infer_response.write_raw(response)) == expected


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest("m", parameters={"p": 1}, inputs=(X,)),
        InferRequest("m", inputs=(replace(X, parameters={"p": 1}),)),
        InferRequest("m", inputs=(X, replace(Y, data=b"", shared_memory=RegionRef("r", 0, 8)))),
        InferRequest("m", outputs=(RequestedOutput("o", {"classification": 1}),)),
        InferRequest("m", outputs=(RequestedOutput("o", shared_memory=RegionRef("r", 0, 8)),)),
    ],
)
def test_unusual_messages_are_written_by_protobuf(request_: InferRequest) -> None:
    infer_request.write_request(without_nested_messages(request_))
    head = infer_request._message_head(request_).SerializeToString(deterministic=True)
    assert bytes(join_parts(infer_request.write_request(request_))).startswith(head)


def test_data_is_not_copied() -> None:
    parts = infer_request.write_request(InferRequest("m", inputs=(X, Y, X)))
    assert [part for part in parts if part is X.data or part is Y.data] == [X.data, Y.data, X.data]


def test_an_empty_response_is_a_message() -> None:
    assert list(infer_response.write_raw(InferResponse(""))) == [b""]


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest("\ud800"),
        InferRequest("m", "\ud800"),
        InferRequest("m", id="\ud800"),
        InferRequest("m", inputs=(replace(X, name="\ud800"),)),
        InferRequest("m", outputs=(RequestedOutput("\ud800"),)),
    ],
)
def test_invalid_utf8_is_rejected_each_time(request_: InferRequest) -> None:
    for _ in range(2):
        with raises_kind(Kind.BAD_REQUEST):
            CODEC.build_request(request_, GENERIC)


def test_the_name_cache_is_bounded_and_skips_long_names() -> None:
    for number in range(1000):
        infer_request.write_request(
            InferRequest(
                f"m{number}",
                inputs=(replace(X, name=f"x{number}"),),
                outputs=(RequestedOutput(f"o{number}"),),
            )
        )
    infos = [cache.cache_info() for cache in CACHES]
    assert all(info.currsize == info.maxsize == 512 for info in infos)
    long = "n" * 129
    for request in (
        InferRequest(long, inputs=(replace(X, name=long),), outputs=(RequestedOutput(long),)),
        InferRequest("m999", long, inputs=(replace(X, shape=(1,) * 17),)),
    ):
        assert join_parts(infer_request.write_request(request))
    assert [cache.cache_info().misses for cache in CACHES] == [info.misses for info in infos]
