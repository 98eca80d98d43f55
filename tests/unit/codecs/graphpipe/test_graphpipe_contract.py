"""The GraphPipe codec: contract checks, round trips of inferences, and corrupted messages."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_errors import error_of
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.graphpipe.datatypes import TYPE_NUMBERS
from infergate.codecs.graphpipe.flatbuffer_reader import MAX_EXPANSION
from infergate.codecs.profiles import GENERIC
from infergate.core import messages
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import HealthStatus, InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import is_same
from infergate.testing.codec_check import check_codec
from infergate.testing.vectors import Vector, body_of, completed, load, with_body
from searching import examples

VECTORS = load(Path(__file__).resolve().parents[3] / "vectors" / "graphpipe")
DATATYPES = frozenset(TYPE_NUMBERS)


def round_trip(value: Any) -> Any:
    """Return the expected result of a round trip over GraphPipe: the model is the listener's, and
    health requests become metadata requests."""
    match value:
        case (
            messages.ServerLiveRequest()
            | messages.ServerReadyRequest()
            | messages.ServerMetadataRequest()
            | messages.ModelReadyRequest()
            | messages.ModelMetadataRequest()
        ):
            return messages.ModelMetadataRequest("m")
        case HealthStatus():
            return HealthStatus(ok=True)
        case messages.ServerMetadata():
            return replace(value, extensions=())
        case ModelMetadata():
            return replace(
                value,
                versions=(),
                platform="",
                max_batch_size=0,
                server="infergate",
                server_version=", ".join(value.versions),
                description=value.platform,
            )
        case InferRequest():
            return replace(value, model="m", version="", id="")
        case InferResponse():
            # the sample request names two of the three outputs
            return replace(value, parameters={}, outputs=value.outputs[:2])
    return value


def metadata_response(
    operation: messages.Operation, response: messages.Response
) -> messages.Response:
    """Return the response that a GraphPipe server sends: metadata in place of health."""
    match response:
        case HealthStatus():
            return ModelMetadata("m")
        case messages.ServerMetadata(version=version):
            return ModelMetadata("m", (version,))
    return response


@pytest.mark.no_cover
@pytest.mark.parametrize("errors", ["status", "response"])
def test_contract(errors: str) -> None:
    check_codec(
        PLUGIN,
        options={"model": "m", "errors": errors},
        round_trip=round_trip,
        server_response=metadata_response,
    )


# ---- round trips


@st.composite
def inferences(draw: st.DrawFn) -> tuple[InferRequest, InferResponse, ModelMetadata]:
    """Draw a request, the model's response, and the model's metadata."""

    def tensors(prefix: str) -> list[Tensor]:
        count = draw(st.integers(1, 3))
        return [
            replace(draw(strategies.tensors(DATATYPES)), name=f"{prefix}{index}", parameters={})
            for index in range(count)
        ]

    def metadata_of(tensor: Tensor) -> messages.TensorMetadata:
        dims = [draw(st.sampled_from((dim, -1))) for dim in tensor.shape]
        return messages.TensorMetadata(tensor.name, tensor.datatype.value, tuple(dims))

    inputs, outputs = tensors("in"), tensors("out")
    model = ModelMetadata(
        "m",
        inputs=tuple(map(metadata_of, draw(st.permutations(inputs)))),
        outputs=tuple(map(metadata_of, draw(st.permutations(outputs)))),
        max_batch_size=0,
    )
    requested = draw(st.permutations(outputs))[: draw(st.integers(1, 3))]
    parameters = draw(st.dictionaries(strategies.names(), strategies.texts(), max_size=2))
    request = InferRequest(
        "m",
        parameters=parameters,
        inputs=tuple(inputs),
        outputs=tuple(messages.RequestedOutput(tensor.name) for tensor in requested),
    )
    return request, InferResponse("m", outputs=tuple(requested)), model


CODEC = PLUGIN.create({"model": "m"})


@given(inferences())
def test_an_inference_round_trips(case: tuple[InferRequest, InferResponse, ModelMetadata]) -> None:
    request, response, model = case
    wire = CODEC.build_request(request, GENERIC, model)
    assert CODEC.summarize(wire).operation is InferRequest
    parsed = completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model)
    assert isinstance(parsed.operation, InferRequest)
    positions = {declared.name: index for index, declared in enumerate(model.outputs)}
    ordered = sorted(request.outputs, key=lambda output: positions[output.name])
    assert is_same(parsed.operation, replace(request, outputs=tuple(ordered)))
    response_wire = CODEC.build_response(response, parsed)
    assert is_same(CODEC.parse_response(response_wire, request, DEFAULT_LIMITS, model), response)


@given(inferences())
def test_all_outputs_round_trip(case: tuple[InferRequest, InferResponse, ModelMetadata]) -> None:
    request, response, model = case
    request = replace(request, outputs=())
    model = replace(
        model,
        outputs=tuple(
            declared
            for declared in model.outputs
            if declared.name in {t.name for t in response.outputs}
        ),
    )
    wire = CODEC.build_request(request, GENERIC, model)
    parsed = completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model)
    response_wire = CODEC.build_response(response, parsed)
    outputs = {tensor.name: tensor for tensor in response.outputs}
    ordered = tuple(outputs[declared.name] for declared in model.outputs)
    parsed_response = CODEC.parse_response(response_wire, request, DEFAULT_LIMITS, model)
    assert is_same(parsed_response, replace(response, outputs=ordered))


# ---- corrupted messages


def check_parsing(vector: Vector, body: bytes) -> None:
    """Check that parsing ``body`` in place of the vector's body raises only GatewayErrors."""
    model = vector.model or ModelMetadata("m")
    wire = with_body(vector.wire, (body,))
    if isinstance(wire, HttpResponse):
        wire = replace(wire, status=200)
        for operation in (vector.operation, messages.ModelMetadataRequest("m"), InferRequest("m")):
            error = error_of(CODEC.parse_response, wire, operation, DEFAULT_LIMITS, model)
            assert error is None or error.public
        return
    assert isinstance(wire, HttpRequest)
    for error in (
        error_of(CODEC.summarize, wire),
        error_of(lambda: completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model)),
    ):
        assert error is None or CODEC.build_error(error, wire).status >= 400


SMALL_VECTORS = [vector for vector in VECTORS if len(join_parts(body_of(vector.wire))) < 5000]


@settings(max_examples=examples(400))
@given(st.sampled_from(SMALL_VECTORS), st.data())
def test_corrupted_captures(vector: Vector, data: st.DataObject) -> None:
    valid = bytes(join_parts(body_of(vector.wire)))
    check_parsing(vector, data.draw(strategies.corrupted_bytes(valid)))


OFFSETS = st.sampled_from([0, 1, 4, 8, 0x7F, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])


@settings(max_examples=examples(400))
@given(st.sampled_from(SMALL_VECTORS), st.data())
def test_captures_with_corrupted_offsets(vector: Vector, data: st.DataObject) -> None:
    """Replace aligned 4-byte words, such as offsets and lengths, with small or huge values."""
    body = bytearray(join_parts(body_of(vector.wire)))
    for _ in range(data.draw(st.integers(1, 3))):
        if len(body) >= 4:
            index = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
            word = data.draw(OFFSETS | st.integers(0, len(body)))
            body[index : index + 4] = word.to_bytes(4, "little")
    check_parsing(vector, bytes(body))


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    for vector in SMALL_VECTORS[:1] + SMALL_VECTORS[-1:]:
        check_parsing(vector, body)


@pytest.mark.no_cover
def test_every_corrupted_byte_stays_within_bounds() -> None:
    """Set each byte of some captures to four values. Only GatewayErrors are raised, and the memory
    is bounded."""
    sample = [vector for vector in SMALL_VECTORS if vector.error is None][::12]
    assert len(sample) > 10
    for vector in sample:
        valid = bytes(join_parts(body_of(vector.wire)))
        corrupted = [
            valid[:index] + bytes((byte,)) + valid[index + 1 :]
            for index in range(len(valid))
            for byte in (0x00, 0x7F, 0x80, 0xFF)
        ]
        tracemalloc.start()
        for body in corrupted:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            check_parsing(vector, body)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < (MAX_EXPANSION + 4) * len(valid) + 20_000, vector
        tracemalloc.stop()
