"""Pass-through of legacy messages. A cached header does not change responses or checks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway_errors import raises_kind
from infergate.codecs.base import CodecPlugin
from infergate.codecs.profiles import GENERIC
from infergate.codecs.trtis import GRPC, HTTP, validated_headers
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.grpc_methods import INFER
from infergate.codecs.trtis.http_pass_through import split_id
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.core.wire import RpcRequest, join_parts
from infergate.testing.vectors import body_of, completed, with_body

MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("NUMBERS", "FP32", (-1, 4)), TensorMetadata("TEXT", "BYTES", (-1, 2))),
    outputs=(TensorMetadata("SUM", "FP32", (-1, 4)), TensorMetadata("WORDS", "BYTES", (-1, 2))),
    max_batch_size=8,
)
NUMBERS = np.arange(4, dtype=np.float32).reshape(1, 4)
WORDS = [b"one", b"other"]


def request(id_: str = "", words: Sequence[bytes] = WORDS, **changes: Any) -> InferRequest:
    inputs = (
        tensor_from_array("NUMBERS", Datatype.FP32, NUMBERS),
        Tensor("TEXT", Datatype.BYTES, (1, 2), pack_bytes(words)),
    )
    outputs = (RequestedOutput("SUM"), RequestedOutput("WORDS"))
    return replace(InferRequest("m", "", id_, inputs=inputs, outputs=outputs), **changes)


def body(wire: Any) -> bytes:
    return bytes(join_parts(body_of(wire)))


class Pipeline:
    """A codec that serves clients and backends, with a count of full header checks."""

    def __init__(self, plugin: CodecPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codec: Any = plugin.create({})
        self.full_checks = 0
        original = validated_headers.ValidatedHeaderCache.add

        def add(*arguments: Any) -> Any:
            self.full_checks += 1
            return original(*arguments)

        monkeypatch.setattr(validated_headers.ValidatedHeaderCache, "add", add)

    def wire(self, inference: InferRequest) -> Any:
        wire = self.codec.build_request(inference, GENERIC, MODEL)
        return with_body(wire, (body(wire),))

    def validate(
        self, wire: Any, model: ModelMetadata = MODEL, limits: Any = DEFAULT_LIMITS
    ) -> Any:
        return completed(self.codec.validate(wire, limits), model)

    def respond(
        self, inference: InferRequest, outputs: Sequence[str], words: Sequence[bytes]
    ) -> Any:
        """Return a server's response with ``outputs`` in this order and the client's id."""
        ordered = replace(inference, outputs=tuple(map(RequestedOutput, outputs)))
        parsed = completed(self.codec.parse_request(self.wire(ordered), DEFAULT_LIMITS), MODEL)
        tensors = (
            tensor_from_array("SUM", Datatype.FP32, NUMBERS),
            Tensor("WORDS", Datatype.BYTES, (1, 2), pack_bytes(words)),
        )
        wire = self.codec.build_response(InferResponse("theirs", "3", outputs=tensors), parsed)
        return with_body(wire, (body(wire),))

    def forward(
        self, inference: InferRequest, response: Any, model: str = "", version: str = ""
    ) -> Any:
        validated = self.validate(self.wire(inference))
        return self.codec.rewrite_response(response, validated, model, version, DEFAULT_LIMITS)

    def translate(self, inference: InferRequest, response: Any, version: str = "") -> Any:
        parsed = completed(self.codec.parse_request(self.wire(inference), DEFAULT_LIMITS), MODEL)
        parsed_response = self.codec.parse_response(
            response, parsed.operation, DEFAULT_LIMITS, MODEL
        )
        return self.codec.build_response(
            replace(parsed_response, version=version or parsed_response.version), parsed
        )


def without_request_id(wire: Any) -> Any:
    if not hasattr(wire, "headers"):
        message = pb.InferResponse.FromString(body(wire))
        message.request_status.ClearField("request_id")
        return message
    status = wire.headers["NV-Status"].partition(" request_id")[0]
    return wire.status, {**wire.headers, "NV-Status": status}, body(wire)


def with_data(wire: Any, data: bytes) -> Any:
    """Return ``wire`` with ``data`` as its only raw data; over HTTP, as its complete body."""
    if hasattr(wire, "headers"):
        return with_body(wire, (data,))
    if isinstance(wire, RpcRequest):
        message = pb.InferRequest.FromString(body(wire))
        message.raw_input[:] = [data]
    else:
        message = pb.InferResponse.FromString(body(wire))
        message.raw_output[:] = [data]
    return with_body(wire, (message.SerializeToString(),))


@pytest.fixture(params=[HTTP, GRPC], ids=lambda plugin: plugin.name)
def pipeline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(request.param, monkeypatch)


@pytest.mark.parametrize("order", [("SUM", "WORDS"), ("WORDS", "SUM")], ids=" ".join)
def test_a_cached_header_gives_the_same_response(
    pipeline: Pipeline, order: tuple[str, str]
) -> None:
    for id_ in ("", "7", "7", "18446744073709551615", "128", ""):
        inference = request(id_)
        response = pipeline.respond(inference, order, WORDS)
        assert without_request_id(pipeline.forward(inference, response)) == without_request_id(
            pipeline.translate(inference, response)
        )
    assert pipeline.full_checks == 1


def test_names_are_rewritten_as_in_a_translation(pipeline: Pipeline) -> None:
    for id_ in ("1", "2"):
        inference = request(id_)
        response = pipeline.respond(inference, ("SUM", "WORDS"), WORDS)
        forwarded = without_request_id(pipeline.forward(inference, response, "m", "12"))
        assert forwarded == without_request_id(pipeline.translate(inference, response, "12"))


def test_a_cached_header_does_not_skip_body_checks(pipeline: Pipeline) -> None:
    inference = request()
    pipeline.forward(inference, pipeline.respond(inference, ("SUM", "WORDS"), WORDS))
    wire = pipeline.wire(inference)
    valid = body(wire)
    for corrupted in (valid[:-1], valid[:-9] + b"\xff" + valid[-8:]):
        with pytest.raises(GatewayError):
            pipeline.validate(with_body(wire, (corrupted,)))


def test_a_repeated_header_with_a_body_of_another_size_is_refused(pipeline: Pipeline) -> None:
    """The only input is numeric, because the shape of a BYTES input does not determine its size."""
    inference = request(inputs=request().inputs[:1], outputs=(RequestedOutput("SUM"),))
    model = replace(MODEL, inputs=MODEL.inputs[:1])
    wire = pipeline.wire(inference)
    pipeline.validate(wire, model)
    for size in (12, 20):
        with pytest.raises(GatewayError, match=r"size|additional"):
            pipeline.validate(with_data(wire, bytes(size)), model)


def test_a_cached_response_header_with_other_data_is_refused(pipeline: Pipeline) -> None:
    inference = request(outputs=(RequestedOutput("SUM"),))
    response = pipeline.respond(inference, ("SUM",), WORDS)
    pipeline.forward(inference, response)
    with raises_kind(Kind.BACKEND_GARBAGE):
        pipeline.forward(inference, with_data(response, NUMBERS.tobytes()[:-4]))


def test_the_data_of_a_cached_response_header_is_checked(pipeline: Pipeline) -> None:
    inference = request()
    response = pipeline.respond(inference, ("SUM", "WORDS"), WORDS)
    pipeline.forward(inference, response)
    corrupted = body(response).replace(pack_bytes(WORDS), b"\xff" * len(pack_bytes(WORDS)))
    assert corrupted != body(response)
    with raises_kind(Kind.BACKEND_GARBAGE):
        pipeline.forward(inference, with_body(response, (corrupted,)))


def test_changed_metadata_or_limits_invalidate_a_cached_header(pipeline: Pipeline) -> None:
    wire = pipeline.wire(request())
    pipeline.validate(wire)
    other = replace(MODEL, inputs=(MODEL.inputs[0], TensorMetadata("TEXT", "BYTES", (-1, 3))))
    with pytest.raises(GatewayError):
        pipeline.validate(wire, other)
    pipeline.validate(wire, replace(MODEL, platform="x"))
    pipeline.validate(wire, limits=replace(DEFAULT_LIMITS))
    assert pipeline.full_checks == 3


def test_the_cache_is_bounded(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.codec._header_cache, "_entries", BoundedCache(4))
    monkeypatch.setattr(validated_headers, "MAX_RESPONSES", 2)
    for length in range(9):
        words = [b"x" * length, b""]
        inference = request(words=words)
        for size in range(5):
            pipeline.forward(
                inference, pipeline.respond(inference, ("SUM", "WORDS"), [b"y" * size, b""])
            )
    entries = pipeline.codec._header_cache._entries
    assert 0 < len(entries) <= 4
    assert all(0 < len(entry.responses) <= 2 for entry in entries.values())


@pytest.mark.parametrize(
    "header",
    [
        'batch_size: 1 input { name: "INPUT0" } # id: 7',
        "batch_size: 1 id: 07",
        "batch_size: 1 id: 18446744073709551616",
        "batch_size: 1 id: 0x7",
    ],
)
def test_text_that_looks_like_an_id_is_part_of_the_header(header: str) -> None:
    assert split_id(header) == (header, 0)
    assert split_id("batch_size: 1 id: 7") == ("batch_size: 1", 7)


def test_messages_that_all_releases_interpret_alike_pass_through(pipeline: Pipeline) -> None:
    wire = pipeline.wire(request("7"))
    rewritten = pipeline.codec.rewrite_request(pipeline.validate(wire), "m", "", GENERIC)
    assert rewritten is not None
    assert body(rewritten) == body(wire)


@pytest.mark.parametrize("side", ["input", "output"])
def test_requests_with_shared_memory_are_not_passed_through(side: str) -> None:
    """A region past the end of its segment would crash the server."""
    codec: Any = GRPC.create({})
    header = pb.InferRequestHeader(batch_size=1)
    input_entry = header.input.add(name="NUMBERS")
    output_entry = header.output.add(name="SUM")
    header_entry = input_entry if side == "input" else output_entry
    header_entry.shared_memory.name, header_entry.shared_memory.byte_size = "r", 16
    inference = pb.InferRequest(model_name="m", model_version=-1, meta_data=header)
    if side == "output":
        inference.raw_input.append(NUMBERS.tobytes())
    model = replace(MODEL, versions=("1",), inputs=MODEL.inputs[:1])
    wire = RpcRequest(INFER, (inference.SerializeToString(),))
    validated = completed(codec.validate(wire, DEFAULT_LIMITS), model)
    assert codec.rewrite_request(validated, "m", "", GENERIC) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"priority": 1}},
        {"outputs": (RequestedOutput("SUM"), RequestedOutput("SUM"))},
    ],
)
def test_messages_that_releases_interpret_differently_are_translated(
    pipeline: Pipeline, changes: dict[str, Any]
) -> None:
    model = replace(MODEL, supports_scheduling=True)
    wire = pipeline.codec.build_request(request(**changes), GENERIC, model)
    validated = pipeline.validate(wire, model)
    assert pipeline.codec.rewrite_request(validated, "m", "", GENERIC) is None


def test_the_option_data_type_prevents_pass_through() -> None:
    assert not HTTP.create({"data_type": True}).can_pass_through  # type: ignore[attr-defined]
    assert not GRPC.create({"data_type": True}).can_pass_through  # type: ignore[attr-defined]
