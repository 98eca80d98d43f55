"""The cache of validated heads gives the same results as the full check, and is bounded."""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from infergate.codecs.base import ParsedRequest
from infergate.codecs.message_heads import MAX_CACHED_HEAD, MAX_WEIGHT, MessageHeadCache
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.codecs.protos.wire_scanner import MalformedMessageError, field_prefix, scan_fields
from infergate.codecs.v2_grpc import codec as codec_module
from infergate.codecs.v2_grpc import validated_heads
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.infer_response import read_response
from infergate.codecs.v2_grpc.methods import INFER
from infergate.codecs.v2_grpc.split_message import MessageLayouts, split_message
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.testing import canonical
from infergate.testing.strategies import corrupted_bytes, infer_requests, infer_responses, texts
from infergate.testing.vectors import load
from object_size import package_size

LIMITS = DEFAULT_LIMITS
NARROW = Limits(tensors=1, rank=1)
both_limits = pytest.mark.parametrize(
    "limits", [LIMITS, pytest.param(NARROW, marks=pytest.mark.no_cover)]
)
REQUEST = InferRequest("m", "1", "id")
VECTORS = load(Path(__file__).parents[3] / "vectors" / "v2-grpc")
REQUESTS = [
    bytes(join_parts(vector.wire.message))
    for vector in VECTORS
    if isinstance(vector.wire, RpcRequest) and vector.wire.method == INFER
]
RESPONSES = [
    bytes(join_parts(vector.wire.message))
    for vector in VECTORS
    if isinstance(vector.wire, RpcResponse) and isinstance(vector.operation, InferRequest)
]


class NoRequestHeads(validated_heads.RequestHeads):
    def find(self, wire: RpcRequest) -> None:
        del wire


class NoResponseHeads(validated_heads.ResponseHeads):
    def read(self, message: Any, limits: Limits, request: InferRequest) -> InferResponse:
        return read_response(message, limits, request)


class NoPassThroughHeads(validated_heads.PassThroughHeads):
    def find(self, message: Any, limits: Limits) -> None:
        del message, limits


class UncachedCodec(V2Grpc):
    """A codec that caches no heads, so it checks every message."""

    def __init__(self) -> None:
        super().__init__()
        self._request_heads = NoRequestHeads()  # type: ignore[misc]
        self._response_heads = NoResponseHeads()  # type: ignore[misc]
        self._pass_through_heads = NoPassThroughHeads()  # type: ignore[misc]


FAST = V2Grpc()
"""Shared by all tests, so that later tests use the heads cached by earlier ones."""
SLOW = UncachedCodec()


def fields_of(message: Sequence[Any]) -> Any:
    """Return the contents of the fields of ``message`` by number, or the text of an error. Of a
    repeated name, id or version, only the last value is returned."""
    data = bytes(join_parts(message))
    contents: dict[int, list[bytes]] = {}
    try:
        for field in scan_fields(data, len(data)):
            value = data[field.value_start : field.end]
            if field.number > 3:
                contents.setdefault(field.number, []).append(value)
            elif value:
                contents[field.number] = [value]
    except MalformedMessageError as error:
        return str(error)
    return contents


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``function`` in a comparable form, or its error."""
    try:
        result = function(*arguments)
    except GatewayError as error:
        return (error.kind, error.public, error.detail, error.origin)
    if isinstance(result, InferRequest | InferResponse):
        return canonical.to_text(result)
    if isinstance(result, RpcRequest | RpcResponse):
        return type(result), fields_of(result.message)
    return result


def request_outcomes(codec: V2Grpc, message: bytes, limits: Limits) -> list[Any]:
    """Return the outcomes of the codec's steps for a request, including pass-through."""

    def new_wire() -> RpcRequest:
        return RpcRequest(INFER, (message,))

    wire = new_wire()
    summary = outcome(codec.summarize, wire)
    validated = outcome(codec.validate, wire, limits)
    parsed = outcome(lambda: codec.parse_request(new_wire(), limits).operation)
    outcomes = [summary, validated, parsed, outcome(codec.sequence_of, new_wire(), limits)]
    requests = [new_wire()]
    if not isinstance(parsed, tuple):
        requests.append(codec.validate(wire, limits))
    names = (
        (getattr(summary, "model", "x"), getattr(summary, "version", "")),
        ("other", "9"),
        ("o", ""),
    )
    for sent, profile, (model, version) in itertools.product(requests, (GENERIC, TRITON), names):
        outcomes.append(outcome(codec.rewrite_request, sent, model, version, profile))
    outcomes.append(outcome(codec.sequence_of, requests[-1], limits))
    return outcomes


def response_outcomes(codec: V2Grpc, message: bytes, limits: Limits) -> list[Any]:
    wire = RpcResponse((message,))
    outcomes = [outcome(codec.parse_response, wire, REQUEST, limits)]
    requests = [
        codec.build_request(replace(REQUEST, id=request_id), GENERIC) for request_id in ("id", "")
    ]
    for operation, names in itertools.product(requests, (("", ""), ("mine", "7"), ("mine", ""))):
        outcomes.append(outcome(codec.rewrite_response, wire, operation, *names, limits))
    return outcomes


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(message, marks=[pytest.mark.no_cover] if len(message) > 10_000 else [])
        for message in REQUESTS
    ],
)
@both_limits
def test_requests_of_vectors_have_the_same_outcomes(message: bytes, limits: Limits) -> None:
    expected = request_outcomes(SLOW, message, limits)
    for _ in range(3):  # the second round fills the cache
        assert request_outcomes(FAST, message, limits) == expected


@pytest.mark.parametrize("message", RESPONSES)
@both_limits
def test_responses_of_vectors_have_the_same_outcomes(message: bytes, limits: Limits) -> None:
    expected = response_outcomes(SLOW, message, limits)
    for _ in range(3):
        assert response_outcomes(FAST, message, limits) == expected


@given(infer_requests(), texts(), st.data())
def test_generated_and_corrupted_requests(
    request: InferRequest, request_id: str, data: st.DataObject
) -> None:
    valid = bytes(join_parts(SLOW.build_request(request, GENERIC).message))
    with_other_id = SLOW.build_request(replace(request, id=request_id), GENERIC)
    for message in (
        valid,
        bytes(join_parts(with_other_id.message)),
        valid,
        data.draw(corrupted_bytes(valid)),
        data.draw(corrupted_bytes(valid)),
        valid,
    ):
        assert request_outcomes(FAST, message, LIMITS) == request_outcomes(SLOW, message, LIMITS)
    assert request_outcomes(FAST, valid, NARROW) == request_outcomes(SLOW, valid, NARROW)


@given(infer_responses(), st.data())
def test_generated_and_corrupted_responses(response: InferResponse, data: st.DataObject) -> None:
    valid = bytes(join_parts(SLOW.build_response(response, ParsedRequest(REQUEST)).message))
    for message in (
        valid,
        valid,
        data.draw(corrupted_bytes(valid)),
        data.draw(corrupted_bytes(valid)),
    ):
        assert response_outcomes(FAST, message, LIMITS) == response_outcomes(SLOW, message, LIMITS)
    assert response_outcomes(FAST, valid, NARROW) == response_outcomes(SLOW, valid, NARROW)


@given(st.sampled_from(REQUESTS), st.data())
def test_corrupted_vectors(valid: bytes, data: st.DataObject) -> None:
    message = data.draw(corrupted_bytes(valid))
    assert request_outcomes(FAST, message, LIMITS) == request_outcomes(SLOW, message, LIMITS)


# ---- cached heads


def request(*raw: bytes, id: str = "", shape: int = 1) -> pb.ModelInferRequest:  # noqa: A002
    message = pb.ModelInferRequest(model_name="m", id=id, raw_input_contents=raw)
    message.inputs.add(name="X", datatype="INT32", shape=[shape])
    message.inputs.add(name="S", datatype="BYTES", shape=[1])
    return message


RAW = (b"\1\0\0\0", b"\2\0\0\0ab")


def test_a_cached_head_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = V2Grpc()
    first = RpcRequest(INFER, (request(*RAW, id="1").SerializeToString(),))
    for _ in range(2):
        assert codec.validate(replace(first), LIMITS).message is first.message
    monkeypatch.setattr(codec_module, "read_request", None)
    data = request(b"\2\0\0\0", b"\0\0\0\0", id="another").SerializeToString()
    second = RpcRequest(INFER, (data,))
    assert codec.summarize(second).model == "m"
    assert codec.validate(second, LIMITS) is second
    parsed = codec.parse_request(second, LIMITS).operation
    assert (parsed.id, bytes(parsed.inputs[1].data)) == ("another", b"\0\0\0\0")
    assert parsed.inputs[0].data.obj is data


@pytest.mark.parametrize(
    "raw",
    [
        (b"\1\0\0", RAW[1]),
        (b"\1\0\0\0\0", RAW[1]),
        (RAW[0], b"\3\0\0\0ab"),
        (RAW[0], b"\2\0\0\0ab\0\0\0\0"),
        (RAW[0], b""),
        RAW[:1],
        (*RAW, b""),
        (),
    ],
)
def test_data_that_does_not_match_a_cached_head_is_rejected(raw: Sequence[bytes]) -> None:
    codec = V2Grpc()
    for _ in range(2):
        codec.validate(RpcRequest(INFER, (request(*RAW).SerializeToString(),)), LIMITS)
    message = request(*raw).SerializeToString()
    with pytest.raises(GatewayError) as caught:
        codec.validate(RpcRequest(INFER, (message,)), LIMITS)
    assert outcome(SLOW.validate, RpcRequest(INFER, (message,)), LIMITS)[1] == caught.value.public


def test_results_for_one_message_are_not_used_for_another() -> None:
    wire = RpcRequest(INFER, (request(*RAW).SerializeToString(),))
    FAST.validate(wire, LIMITS)
    other = pb.ModelInferRequest(model_name="other").SerializeToString()
    assert FAST.summarize(replace(wire, message=(other,))).model == "other"
    wire.message = (other,)
    assert FAST.summarize(wire).model == "other"


def test_messages_in_parts_and_views() -> None:
    data = request(*RAW, id="i").SerializeToString()
    expected = request_outcomes(SLOW, data, LIMITS)
    for message in ((memoryview(data),), (data[:5], memoryview(data)[5:])):
        wire = RpcRequest(INFER, message)
        assert outcome(FAST.summarize, wire) == expected[0]
        assert outcome(FAST.validate, wire, LIMITS) == expected[1]


@pytest.mark.parametrize(
    "message",
    [
        field_prefix(3, 1) + b"a" + field_prefix(3, 1) + b"b",  # protobuf uses the last id
        field_prefix(3, 1) + b"\xff",
        b"\x8a\x00" + b"\1m",  # a tag of two bytes
        b"\x0a\x81\x80\x80\x80\x80\x00m",
        b"\x38\x01",  # raw contents as an integer
        field_prefix(8, 1) + b"x",
        field_prefix(1, 2) + b"m",
        field_prefix(1, MAX_CACHED_HEAD) + b"m" * MAX_CACHED_HEAD,
        b"\x0a",
    ],
)
def test_unusual_messages_are_not_split(message: bytes) -> None:
    assert split_message(message, 7) is None


# ---- requests that are not validated


def test_the_names_of_a_recurring_head_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = V2Grpc()

    def forward(number: int) -> RpcRequest | None:
        wire = RpcRequest(INFER, (request(*RAW, id=str(number)).SerializeToString(),))
        assert codec.summarize(wire).model == "m"
        return codec.rewrite_request(wire, "other", "2", GENERIC)

    first = forward(1)
    assert not codec._request_heads._heads.entries  # a head seen once is not cached
    forward(2)
    monkeypatch.setattr(codec_module, "read_strings", None)
    monkeypatch.setattr(codec_module, "remove_fields", None)
    third = forward(3)
    assert first is not None
    message = pb.ModelInferRequest.FromString(bytes(join_parts(third.message)))
    assert (message.model_name, message.model_version, message.id) == ("other", "2", "3")
    assert list(message.raw_input_contents) == list(RAW)
    message.id = "1"
    assert message == pb.ModelInferRequest.FromString(bytes(join_parts(first.message)))


def test_a_head_that_was_not_validated_gets_the_full_check_later() -> None:
    codec = V2Grpc()
    message = request(b"short", RAW[1]).SerializeToString()
    for _ in range(3):
        wire = RpcRequest(INFER, (message,))
        codec.summarize(wire)
        codec.rewrite_request(wire, "other", "", GENERIC)
    assert codec._request_heads._heads.entries
    for _ in range(2):
        with pytest.raises(GatewayError, match="needs 4 bytes"):
            codec.validate(RpcRequest(INFER, (message,)), LIMITS)
    valid = request(*RAW).SerializeToString()
    codec.validate(RpcRequest(INFER, (valid,)), LIMITS)
    (head,) = codec._request_heads._heads.entries.values()
    assert head.validated is not None
    codec.rewrite_request(RpcRequest(INFER, (valid,)), "other", "", GENERIC)
    assert list(codec._request_heads._heads.entries.values()) == [head]


# ---- bounds


def test_a_request_for_an_output_in_shared_memory_is_never_passed_through() -> None:
    message = request(*RAW)
    message.outputs.add(name="Y").parameters["shared_memory_region"].string_param = "r"
    codec = V2Grpc()
    for _ in range(3):
        wire = codec.validate(RpcRequest(INFER, (message.SerializeToString(),)), LIMITS)
        assert codec.rewrite_request(wire, "m", "", GENERIC) is None


def cached_bytes(fields: dict[str, Any], count: int, *, validates: bool = True) -> int:
    """Return the bytes that a codec caches after ``count`` distinct heads with ``fields``."""
    codec = V2Grpc()
    before = package_size("codecs", codec)
    for number in range(count):
        message = pb.ModelInferRequest(model_name=f"m{number}", **fields).SerializeToString()
        assert split_message(message, 7), "the head is too long for the cache"
        for _ in range(3):
            wire = RpcRequest(INFER, (message,))
            forwarded = codec.validate(wire, LIMITS) if validates else wire
            codec.rewrite_request(forwarded, "other", "9", GENERIC)
    return package_size("codecs", codec) - before


NAMES = [f"{index:x}" for index in range(220)]
FLAG = pb.InferParameter(bool_param=True)
HEADS: dict[str, dict[str, Any]] = {
    "name only": {},
    "parameters": {"parameters": dict.fromkeys(NAMES[:180], FLAG)},
    "tensors": {
        "inputs": [{"name": name, "datatype": "INT8", "shape": [0]} for name in NAMES[:120]],
        "raw_input_contents": [b""] * 120,
    },
    "outputs": {"outputs": [{"name": name} for name in NAMES]},
    "outputs with parameters": {
        "outputs": [
            {"name": name, "parameters": {"k": pb.InferParameter(int64_param=2**20 + index)}}
            for index, name in enumerate(NAMES[:100])
        ]
    },
}
"""The fields of messages, besides the model's name."""


def test_a_message_with_a_long_id_gets_the_full_check() -> None:
    """Splitting the message would decode the ID before the access check."""
    for size, is_split in ((MAX_CACHED_HEAD, True), (MAX_CACHED_HEAD + 1, False)):
        message = pb.ModelInferRequest(model_name="m", id="i" * size)
        assert (split_message(message.SerializeToString(), 7) is not None) is is_split


@pytest.mark.no_cover
@pytest.mark.parametrize("fields", HEADS.values(), ids=HEADS.keys())
def test_a_flood_of_heads_stays_within_the_limit(fields: dict[str, Any]) -> None:
    count = 90 if fields else 3000
    assert cached_bytes(fields, count) < MAX_WEIGHT
    assert cached_bytes(fields, count, validates=False) < MAX_WEIGHT


def test_a_head_seen_once_is_not_cached() -> None:
    cache: MessageHeadCache[int] = MessageHeadCache()
    assert not cache.has_recurred(b"once")
    assert cache.has_recurred(b"once")
    for number in range(100_000):
        assert not cache.has_recurred(b"%d" % number)
    assert not cache.has_recurred(b"once")
    assert sys.getsizeof(cache._seen) < MIB


def test_heads_in_use_stay_cached_and_others_are_evicted() -> None:
    cache: MessageHeadCache[int] = MessageHeadCache()
    for number in range(100_000):
        cache.store(b"%d" % number, number)
        cache.store(b"busy", -1) if not number else None
        assert cache.get(b"busy") == -1
    assert cache.get(b"99999") == 99_999
    assert cache.get(b"1") is None


@given(
    st.sampled_from([(7, data) for data in REQUESTS] + [(6, data) for data in RESPONSES]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
)
def test_a_known_layout_gives_the_same_split(
    vector: tuple[int, bytes], changes: list[tuple[int, int]]
) -> None:
    raw_field, message = vector
    split = split_message(message, raw_field)
    if split is None or not message:
        return
    layouts = MessageLayouts()
    assert layouts.split(message) is None
    layouts.keep(message, split)
    assert layouts.split(message) == split
    other = bytearray(message)
    for position, byte in changes:
        other[position % len(other)] = byte
    other_split = layouts.split(bytes(other))
    assert other_split is None or other_split == split_message(bytes(other), raw_field)


def test_a_known_layout_accepts_another_id_and_other_data() -> None:
    layouts = MessageLayouts()

    def message(request_id: str, data: bytes) -> bytes:
        request = pb.ModelInferRequest(model_name="m", id=request_id)
        request.inputs.add(name="x", datatype="UINT8", shape=[2])
        request.raw_input_contents.append(data)
        return bytes(request.SerializeToString())

    first = message("ab", b"12")
    split = split_message(first, 7)
    assert split is not None
    layouts.keep(first, split)
    other = message("é", b"34")
    assert layouts.split(other) == split_message(other, 7) != split
    assert layouts.split(memoryview(other)) is None
    assert layouts.split(other.replace("é".encode(), b"\xff\xff")) is None
