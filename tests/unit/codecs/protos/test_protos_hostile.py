"""Messages of many small fields: every loop over fields stops at a limit.

A field can be two bytes long, so a message that inflates from a few kilobytes can hold tens of
millions of fields.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.codecs.base import PartialInferRequest
from infergate.codecs.profiles import GENERIC
from infergate.codecs.protos.bounded_parser import parse
from infergate.codecs.protos.plain_values import MAX_VALUES
from infergate.codecs.protos.wire_scanner import (
    MAX_NAME_BYTES,
    MalformedMessageError,
    field_prefix,
    string_field,
)
from infergate.codecs.trtis import GRPC, grpc_backend, server_status
from infergate.codecs.trtis import messages as legacy
from infergate.codecs.trtis.grpc_methods import INFER, STREAM_INFER
from infergate.codecs.v2_grpc import codec as v2_codec
from infergate.codecs.v2_grpc import methods as v2
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.messages import (
    ModelConfigResponse,
    ModelInferRequest,
    ModelInferResponse,
    ModelStatisticsResponse,
)
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, MIB
from infergate.core.wire import RpcRequest, RpcResponse
from traced_memory import peak_bytes

WITHOUT_MODEL = {
    *(messages.ServerLiveRequest, messages.ServerReadyRequest, messages.ServerMetadataRequest),
    *(messages.ModelIndexRequest, messages.LogSettingsRequest),
}
SIZE = 6 * MIB
NAME_FIELD = string_field(1, "secret")
V2 = V2Grpc()
TRTIS = GRPC.create({})


class CountingBytes(bytes):
    """A buffer that counts reads of bytes and slices."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


def tag(number: int, wire_type: int) -> bytes:
    """Encode a tag of one or two bytes."""
    first = number << 3 | wire_type
    return bytes((first,)) if first < 0x80 else bytes((first & 0x7F | 0x80, first >> 7))


def repeat_field(number: int, wire_type: int = 2, value: bytes = b"\0", size: int = SIZE) -> bytes:
    field = tag(number, wire_type) + value
    return field * (size // len(field))


def nest_fields(*path: int, fields: bytes) -> bytes:
    for number in reversed(path):
        fields = tag(number, 2) + field_prefix(1, len(fields))[1:] + fields
    return fields


TOP_LEVEL_FIELDS: dict[str, Callable[[], bytes]] = {
    **{f"field-{number}": partial(repeat_field, number) for number in (1, 2, 3, 4, 5, 6, 7, 15)},
    "integers": partial(repeat_field, 8, 0, b"\x01"),
    "long-integers": partial(repeat_field, 8, 0, b"\xff" * 9 + b"\1"),
    "long-lengths": partial(repeat_field, 7, 2, b"\x80\0"),
    "alternating": lambda: b"\x3a\0\x2a\0" * (SIZE // 4),
}
"""The fields of a ModelInferRequest or a legacy InferRequest."""


@pytest.mark.no_cover
@pytest.mark.parametrize("name", TOP_LEVEL_FIELDS)
@pytest.mark.parametrize("method", [v2.INFER, v2.STREAM, INFER, STREAM_INFER])
def test_work_before_the_access_check_is_bounded(method: str, name: str) -> None:
    codec: Any = V2 if method in (v2.INFER, v2.STREAM) else TRTIS
    data = CountingBytes(NAME_FIELD + TOP_LEVEL_FIELDS[name]())
    wire = RpcRequest(method, (data,))
    with suppress(GatewayError):
        codec.summarize(wire)
    error = GatewayError(Kind.UNAUTHENTICATED, "no credentials")
    codec.build_error(error, wire)
    if codec is V2:
        codec.build_stream_error(error, wire)
    assert data.reads < 2_000_000


@pytest.mark.parametrize(("codec", "method"), [(V2, v2.INFER), (TRTIS, INFER)])
def test_a_long_model_name_is_rejected(codec: Any, method: str) -> None:
    version = b"\x10\x01" * (codec is TRTIS)
    longest, longer = (
        RpcRequest(method, (string_field(1, "m" * size) + version,))
        for size in (MAX_NAME_BYTES, MAX_NAME_BYTES + 1)
    )
    assert len(codec.summarize(longest).model) == MAX_NAME_BYTES
    with raises_kind(Kind.BAD_REQUEST, match=f"{MAX_NAME_BYTES} bytes"):
        codec.summarize(longer)


@pytest.mark.parametrize(("codec", "method"), [(V2, v2.INFER), (TRTIS, INFER)])
def test_the_model_of_the_summary_is_the_model_of_the_backends_request(
    codec: Any, method: str
) -> None:
    """The last name in a message counts. The backend's request has only the new name."""
    version = b"\x10\x01" * (codec is TRTIS)
    other_fields, name = repeat_field(9, size=4000), string_field(1, "mine")
    message = NAME_FIELD + version + other_fields + name + other_fields
    wire = RpcRequest(method, (message,))
    assert codec.summarize(wire).model == "mine"
    upstream = codec.rewrite_request(wire, "theirs", "", GENERIC)
    assert codec.summarize(upstream).model == "theirs"
    assert b"secret" not in b"".join(upstream.message)


# ---- loops and parsers


def paths(message: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of fields that may repeat or be long, outermost first."""
    for field in message.fields:
        if field.is_repeated or field.message_type is not None:
            yield (*parents, field)
        if field.message_type is not None:
            yield from paths(field.message_type, (*parents, field))


def hostile_messages(kind: Any) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """For each kind of field, yield a name and a function that builds a message of a given size."""
    for path in paths(kind.DESCRIPTOR):
        name, number, leaf = ".".join(field.name for field in path), path[-1].number, path[-1]
        fillers: dict[str, Callable[[int], bytes]] = {
            "empty": partial(repeat_field, number, 2, b"\0")
        }
        if leaf.message_type is None and leaf.type not in {leaf.TYPE_STRING, leaf.TYPE_BYTES}:
            fillers["packed"] = lambda size, number=number: nest_fields(number, fields=b"\1" * size)
            fillers["single"] = partial(repeat_field, number, 0, b"\1")
        outer = [field.number for field in path[:-1]]
        for encoding, filler in fillers.items():
            yield (
                f"{name}:{encoding}",
                lambda size, filler=filler, outer=outer: nest_fields(*outer, fields=filler(size)),
            )


SMALL, LARGE = MIB // 2, 4 * MIB
REQUESTS: dict[str, tuple[Any, Any]] = {
    v2.INFER: (V2, ModelInferRequest),
    INFER: (TRTIS, legacy.InferRequest),
}
HEADS = {v2.INFER: NAME_FIELD, INFER: NAME_FIELD + b"\x10\x01"}
SHORT_REQUEST = RpcRequest(v2.INFER, (NAME_FIELD,))
NO_MODEL = messages.ModelMetadata("m", max_batch_size=0)


def process_request(codec: Any, wire: RpcRequest) -> None:
    """Run the codec's steps for a request."""

    def parse_and_finish() -> None:
        parsed = codec.parse_request(wire, DEFAULT_LIMITS)
        if isinstance(parsed, PartialInferRequest):
            parsed.complete(NO_MODEL)

    for step in (
        lambda: codec.summarize(wire),
        parse_and_finish,
        lambda: codec.validate(wire, DEFAULT_LIMITS),
        lambda: codec.sequence_of(wire, DEFAULT_LIMITS),
        lambda: codec.rewrite_request(wire, "other", "", GENERIC),
        lambda: codec.build_error(GatewayError(Kind.INTERNAL, "x"), wire),
    ):
        with suppress(GatewayError):
            step()


def process_response(codec: Any, wire: RpcResponse) -> None:
    """Run the codec's steps for an inference response."""
    steps: list[Callable[[], object]] = [
        lambda: codec.parse_response(wire, messages.InferRequest("m"), DEFAULT_LIMITS, NO_MODEL),
        lambda: codec.rewrite_response(wire, SHORT_REQUEST, "m", "", DEFAULT_LIMITS),
    ]
    if codec is V2:
        steps.append(
            lambda: codec.parse_stream_response(wire, messages.InferRequest("m"), DEFAULT_LIMITS)
        )
    for step in steps:
        with suppress(GatewayError):
            step()


def cases(label: str, codec: Any, kind: Any) -> Iterator[Any]:
    """Yield a case for each message. ``make test`` runs one encoding of each field, in rotation,
    and ``make test-peers`` the other encodings."""
    names = [name for name, _ in hostile_messages(kind)]
    for index, (_, group) in enumerate(groupby(names, lambda name: name.rpartition(":")[0])):
        encodings = list(group)
        for name in encodings:
            marks = () if name == encodings[index % len(encodings)] else pytest.mark.peers
            yield pytest.param(codec, kind, name, id=f"{label}: {name}", marks=marks)


CASES = [
    *[case for method, row in REQUESTS.items() for case in cases(method, *row)],
    *cases("response", V2, ModelInferResponse),
    *cases("response", TRTIS, legacy.InferResponse),
]
MEMORY_CASES = [
    case
    if index % 3 == 0 or case.marks
    else pytest.param(*case.values, id=case.id, marks=pytest.mark.peers)
    for index, case in enumerate(CASES)
]
"""tracemalloc makes the test slow, so ``make test`` runs a third of the cases."""


def seconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def process_hostile(codec: Any, kind: Any, name: str, size: int) -> Callable[[], None]:
    """Return a function that processes a hostile message of ``size`` bytes."""
    method = next((m for m, row in REQUESTS.items() if row[1] is kind), None)
    message = dict(hostile_messages(kind))[name](size)
    if method is not None:
        return partial(process_request, codec, RpcRequest(method, (HEADS[method] + message,)))
    return partial(process_response, codec, RpcResponse((message,)))


@pytest.mark.no_cover
@pytest.mark.parametrize(("codec", "kind", "name"), CASES)
def test_the_cost_of_an_inference_is_bounded(codec: Any, kind: Any, name: str) -> None:
    """Eight times the bytes take less than three times the CPU time, plus 50 ms."""
    steps = [process_hostile(codec, kind, name, size) for size in (SMALL, LARGE)]
    for attempt in range(3):
        small, large = map(seconds, steps)
        if large < 3 * small + 0.05:
            break
        assert attempt < 2, (small, large)


@pytest.mark.no_cover
@pytest.mark.parametrize(("codec", "kind", "name"), MEMORY_CASES)
def test_the_memory_of_an_inference_is_bounded(codec: Any, kind: Any, name: str) -> None:
    assert peak_bytes(process_hostile(codec, kind, name, LARGE)) < 4 * LARGE


@pytest.mark.parametrize("method", v2.BY_PATH.values(), ids=lambda method: method.path)
def test_the_fields_of_every_response_are_counted_before_parsing(
    method: v2.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_RESPONSE_FIELDS", "_MAX_REQUEST_FIELDS"):
        monkeypatch.setattr(v2_codec, name, 100)
    operation = method.operation() if method.operation in WITHOUT_MODEL else method.operation("m")
    for name, message in hostile_messages(method.response):
        with pytest.raises(GatewayError, match="cannot be read") as caught:
            V2.parse_response(RpcResponse((message(1000),)), operation, DEFAULT_LIMITS)
        assert caught.value.kind is Kind.BACKEND_GARBAGE, name
        assert "more than 100 fields" in caught.value.detail, name


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (messages.ServerReadyRequest(), legacy.HealthResponse),
        (messages.ModelLoadRequest("m"), legacy.ModelControlResponse),
        (messages.SharedMemoryUnregisterRequest("m"), legacy.SharedMemoryControlResponse),
        (messages.ModelMetadataRequest("m"), legacy.StatusResponse),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else "",
)
def test_the_fields_of_every_legacy_response_are_counted_before_parsing(
    operation: messages.Operation, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (grpc_backend, server_status):
        monkeypatch.setattr(module, "MAX_FIELDS", 100)
    for name, message in hostile_messages(kind):
        with pytest.raises(GatewayError, match="cannot be parsed") as caught:
            TRTIS.parse_response(RpcResponse((message(1000),)), operation, DEFAULT_LIMITS)
        assert "more than 100 fields" in caught.value.detail, name


@given(st.binary(max_size=64), st.integers(0, 40))
@example(nest_fields(4, fields=b"\x0a\x01mh"), 40)
@example(nest_fields(4, fields=b"\x0a\x80\x00"), 40)
def test_the_bounded_parser_agrees_with_the_runtime(data: bytes, limit: int) -> None:
    """A message that the runtime parses is refused only for its number of fields or for a group."""
    try:
        expected = ModelConfigResponse.FromString(data)
    except DecodeError:
        return
    try:
        assert parse(ModelConfigResponse, data, limit, len(data)) == expected
    except MalformedMessageError as error:
        # the parser refuses groups, because proto3 has none
        assert "more than" in str(error) or "wire type" in str(error)  # noqa: PT017


def test_the_maximum_number_of_fields_and_bytes() -> None:
    data = string_field(1, "m")
    assert parse(ModelInferRequest, data, 1, len(data)).model_name == "m"
    for fields, size in ((0, len(data)), (1, len(data) - 1)):
        with pytest.raises(MalformedMessageError):
            parse(ModelInferRequest, data, fields, size)


def test_the_number_of_statistics_values_is_bounded() -> None:
    """An entry of two bytes becomes a dozen values."""
    message = ModelStatisticsResponse()
    for _ in range(MAX_VALUES // 4):
        message.model_stats.add()
    wire = RpcResponse((message.SerializeToString(),))
    with pytest.raises(GatewayError, match="cannot be read") as caught:
        V2.parse_response(wire, messages.ModelStatisticsRequest(""), DEFAULT_LIMITS)
    assert f"more than {MAX_VALUES} nested fields" in caught.value.detail
