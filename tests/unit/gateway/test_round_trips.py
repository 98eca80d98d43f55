"""The losses of an inference in each protocol, as documented in docs/fidelity-*.md.

The contract tests of tests/unit/codecs test with generated messages, protocol by protocol, that
everything else arrives unchanged.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from gateway_errors import raises_kind
from infergate.codecs import graphpipe, tfs, trtis, v2_grpc, v2_rest
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes
from infergate.testing.canonical import to_text
from infergate.testing.vectors import completed

CODECS: dict[str, tuple[Any, Any]] = {
    "json": (v2_rest.PLUGIN.create({}), GENERIC),
    "binary": (v2_rest.PLUGIN.create({}), TRITON),
    "grpc": (v2_grpc.PLUGIN.create({}), GENERIC),
    "graphpipe": (graphpipe.PLUGIN.create({"model": "m"}), GENERIC),
    "trtis-http": (trtis.HTTP.create({}), GENERIC),
    "trtis-grpc": (trtis.GRPC.create({}), GENERIC),
    "tfs-grpc": (tfs.GRPC.create({"contents": "raw"}), GENERIC),
    "tfs-typed": (tfs.GRPC.create({"contents": "typed"}), GENERIC),
}
REST, TRTIS, TFS = "json binary", "trtis-http trtis-grpc", "tfs-grpc tfs-typed"
X, Y, Z = (Tensor(name, Datatype.UINT8, (1,), b"\x07") for name in "XYZ")
OUTPUTS = (RequestedOutput("Y"), RequestedOutput("Z"))


def inputs(datatype: Datatype, data: bytes) -> dict[str, Any]:
    return {"inputs": (Tensor("X", datatype, (1,), data),)}


def metadata(request: InferRequest) -> ModelMetadata:
    def describe(tensors: Any) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(t.name, t.datatype.value, t.shape) for t in tensors)

    return ModelMetadata("m", inputs=describe(request.inputs), outputs=describe((Y, Z)))


UNSUPPORTED, BAD = Kind.UNSUPPORTED, Kind.BAD_REQUEST
REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | Kind]] = {
    "names in paths": (REST, {"version": ".."}, UNSUPPORTED),
    "legacy names in paths": ("trtis-http", {"model": "a b"}, UNSUPPORTED),
    "binary_data_size": (REST, {"parameters": {"binary_data_size": 4}}, {"parameters": {}}),
    "infinite parameters": (REST, {"parameters": {"p": math.inf}}, UNSUPPORTED),
    "BYTES not UTF-8": ("json", inputs(Datatype.BYTES, pack_bytes([b"\xff"])), UNSUPPORTED),
    "sign and payload of NaN": (
        "json", inputs(Datatype.FP32, b"\1\0\x80\xff"), inputs(Datatype.FP32, b"\x00\x00\xc0\x7f"),
    ),
    "null": ("grpc", {"parameters": {"p": None}}, {"parameters": {}}),
    "lists and objects": (
        "grpc", {"parameters": {"p": [1, {"a": None}]}}, {"parameters": {"p": '[1,{"a":null}]'}},
    ),
    "BOOL": ("graphpipe", inputs(Datatype.BOOL, b"\1"), UNSUPPORTED),
    "BF16": ("graphpipe " + TRTIS, inputs(Datatype.BF16, b"\0\0"), UNSUPPORTED),
    "ids and versions": ("graphpipe", {"id": "1", "version": "3"}, {"id": "", "version": ""}),
    "parameters not JSON": ("graphpipe", {"parameters": {"p": math.inf}}, BAD),
    "parameters of tensors": (
        "graphpipe " + TRTIS, {"inputs": (replace(X, parameters={"p": 1}),)}, {"inputs": (X,)},
    ),
    "order of outputs": ("graphpipe", {"outputs": OUTPUTS[::-1]}, {"outputs": OUTPUTS}),
    "all outputs": ("graphpipe " + TRTIS, {"outputs": ()}, {"outputs": OUTPUTS}),
    "versions not numbers": (f"{TRTIS} {TFS}", {"version": "v2"}, BAD),
    "version 0": (TFS, {"version": "0"}, {"version": ""}),
    "ids not numbers": (TRTIS, {"id": "a-1"}, {"id": ""}),
    "ids": (TFS, {"id": "1"}, {"id": ""}),
    "parameters": (f"{TRTIS} {TFS}", {"parameters": {"p": 1}}, {"parameters": {}}),
    "the default signature": (TFS, {"parameters": {"signature_name": "serving_default"}},
                              {"parameters": {}}),
    "signatures not strings": (TFS, {"parameters": {"signature_name": 1}}, BAD),
    "parameters of tensors and outputs": (
        TFS,
        {"inputs": (replace(X, parameters={"p": 1}),),
         "outputs": tuple(replace(output, parameters={"p": 1}) for output in OUTPUTS)},
        {"inputs": (X,), "outputs": OUTPUTS},
    ),
}  # fmt: skip
RESPONSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "names": (
        "graphpipe", {"model": "other", "version": "3", "id": "1"},
        {"model": "m", "version": "", "id": ""},
    ),
    "ids": (TFS, {"id": "2"}, {"id": ""}),
    "id and model": (TRTIS, {"model": "other", "id": "2"}, {"model": "m", "id": ""}),
    "versions not numbers": (f"{TRTIS} {TFS}", {"version": "v2"}, {"version": ""}),
    "parameters": (f"graphpipe {TRTIS} {TFS}", {"parameters": {"p": 1}}, {"parameters": {}}),
    "order of outputs": ("graphpipe " + TRTIS, {"outputs": (Z, Y)}, {"outputs": (Y, Z)}),
}  # fmt: skip


def parse(protocol: str, request: InferRequest) -> Any:
    """Return the server's parse result for a client's ``request`` in ``protocol``."""
    codec, profile = CODECS[protocol]
    model = metadata(request)
    wire = codec.build_request(request, profile, model)
    return completed(codec.parse_request(wire, DEFAULT_LIMITS), model)


@pytest.mark.parametrize(
    ("protocol", "loss"),
    [(protocol, loss) for loss, row in REQUESTS.items() for protocol in row[0].split()],
)
def test_losses_of_requests_are_as_documented(protocol: str, loss: str) -> None:
    _, fields, expected = REQUESTS[loss]
    plain = InferRequest("m", inputs=(X,), outputs=OUTPUTS)
    request = replace(plain, **fields)
    if isinstance(expected, Kind):
        with raises_kind(expected):
            parse(protocol, request)
        return
    assert to_text(parse(protocol, request).operation) == to_text(replace(request, **expected))
    assert to_text(parse(protocol, plain).operation) == to_text(plain)


@pytest.mark.parametrize(
    ("protocol", "loss"),
    [(protocol, loss) for loss, row in RESPONSES.items() for protocol in row[0].split()],
)
def test_losses_of_responses_are_as_documented(protocol: str, loss: str) -> None:
    _, fields, expected = RESPONSES[loss]
    request = InferRequest("m", inputs=(X,), outputs=OUTPUTS)
    response = replace(InferResponse("m", outputs=(Y, Z)), **fields)
    codec, _ = CODECS[protocol]
    wire = codec.build_response(response, parse(protocol, request))
    parsed = codec.parse_response(wire, request, DEFAULT_LIMITS, metadata(request))
    assert to_text(parsed) == to_text(replace(response, **expected))
