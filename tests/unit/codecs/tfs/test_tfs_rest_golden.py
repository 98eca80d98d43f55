"""The REST codec against JSON, errors and paths recorded from TensorFlow Serving's own code
(tests/data/tfserving/cases.jsonl and rest.jsonl).

``DEVIATIONS`` are the requests that infergate reads differently, as docs/fidelity-tfs.md lists.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_errors import refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.tfs import REST
from infergate.codecs.tfs import messages as pb
from infergate.codecs.tfs.rest_paths import match_path
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelSignature,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing import Vector, check_vector
from infergate.testing.vectors import ExpectedError

DATA = Path(__file__).parents[3] / "data" / "tfserving"
CODEC: Any = REST.create({})
REFUSED = ExpectedError(Kind.BAD_REQUEST, ())
DEVIATIONS: dict[str, Any] = {
    # numbers that TensorFlow Serving changes
    **dict.fromkeys(
        ("edge.FP32.-1e39", "edge.FP32.1.7976931348623157e308", "edge.FP32.3.5e38",
         "edge.INT16.32768", "edge.INT16.65536", "edge.INT8.300", "edge.UINT8.-1",
         "kind.column.UINT8.negative"),
        REFUSED,
    ),
    # depths over infergate's limit, and ambiguous names
    **dict.fromkeys(
        ("depth.column.100", "depth.column.256", "several.row_duplicate_key",
         "single.duplicate_instances", "string.bytes.nul_in_row_name"),
        REFUSED,
    ),
    # datatypes that TensorFlow Serving's JSON lacks
    "column.dtype.BF16": [1, 0.5], "column.named.BF16": [[1], [0.5]], "column.scalar.BF16": 0.5,
    "column.dtype.UINT16": [60000, 2], "column.named.UINT16": [[60000], [2]],
    "column.scalar.UINT16": 2, "row.dtype.FP16": [1, 0.5],
    "row.rank2.FP16": [[1, 0.5], [0.5, 1], [1, 1]],
}  # fmt: skip


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


CASES = _lines("cases.jsonl")


def _parametrize(direction: str) -> Any:
    cases = [c for c in CASES if c["direction"] == direction and not c["id"].startswith("examples")]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def _name(dtype: str) -> str:
    return dtype if dtype in DATATYPES_BY_NAME else f"DT_{dtype}"


def _tensors(infos: dict[str, Any]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(name, _name(info["dtype"]), tuple(info.get("shape", (-1,))))
        for name, info in infos.items()
    )


def _tensor(name: str, info: dict[str, Any]) -> Tensor:
    data = base64.b64decode(info["data_b64"])
    return Tensor(name, DATATYPES_BY_NAME[info["dtype"]], tuple(info["shape"]), data)


def _model(case: dict[str, Any]) -> ModelMetadata:
    signature = case["signature"]
    return ModelMetadata(
        "m",
        inputs=_tensors(signature.get("inputs", {})),
        outputs=_tensors(signature.get("outputs", {})),
        signatures=tuple(
            ModelSignature(name, "", _tensors(other["inputs"]), ())
            for name, other in case.get("other_signatures", {}).items()
        ),
    )


def _body(case: dict[str, Any]) -> bytes:
    if "body_b64" in case:
        return base64.b64decode(case["body_b64"])
    text: str = case["body"]
    return text.encode()


@_parametrize("request")
def test_requests_are_read_as_recorded(case: dict[str, Any]) -> None:
    wire = HttpRequest("POST", "/v1/models/m:predict", body=(_body(case),))
    expect = case["expect"]
    model, canonical, error = _model(case), None, None
    expected = DEVIATIONS.get(case["id"], expect)
    if isinstance(expected, ExpectedError):
        error = expected
    elif "status" in expect and expected is expect:
        unsupported = "to type: " in expect["status"]["message"]
        error = ExpectedError(Kind.UNSUPPORTED if unsupported else Kind.BAD_REQUEST, ())
    elif expected is expect:
        name = expect.get("signature_name", "")
        parameters = {"signature_name": name} if name not in ("", "serving_default") else {}
        inputs = tuple(_tensor(name, info) for name, info in expect["tensors"].items())
        canonical = InferRequest("m", parameters=parameters, inputs=inputs)
    else:
        parsed = CODEC.parse_request(wire, DEFAULT_LIMITS).complete(model)
        (tensor,) = parsed.operation.inputs
        assert tensor.datatype.value == model.inputs[0].datatype
        assert tensor.numpy().tolist() == expected
        return
    vector = Vector("tfs-rest", case["id"], "", "", wire, canonical, error, model=model)
    check_vector(CODEC, vector)


def test_every_deviation_is_a_case() -> None:
    assert {case["id"] for case in CASES} > set(DEVIATIONS)


@_parametrize("response")
def test_responses_are_written_as_recorded(case: dict[str, Any]) -> None:
    expect = case["expect"]
    if not case.get("form"):  # classifications and regressions are forwarded
        return
    infos: dict[str, Any] = case["tensors"]
    if not all(info["dtype"] in DATATYPES_BY_NAME for info in infos.values()):
        return
    outputs = tuple(_tensor(name, info) for name, info in infos.items())
    body = json.dumps({"instances" if case["form"] == "row" else "inputs": [1]}).encode()
    wire = HttpRequest("POST", "/v1/models/m:predict", body=(body,))
    model = ModelMetadata("m", inputs=(TensorMetadata("x", "FP32", (-1,)),))
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS).complete(model)
    response = InferResponse("m", outputs=outputs)
    if "status" in expect and "tensor type" not in expect["status"]["message"] and outputs:
        error = refused(CODEC.build_response, response, parsed)
        assert error.kind is Kind.BAD_REQUEST
        assert error.public == expect["status"]["message"]
        return
    response_wire = CODEC.build_response(response, parsed)
    assert response_wire.status == 200
    declared = tuple(
        TensorMetadata(t.name, t.datatype.value, t.shape if 0 in t.shape else (-1,) * len(t.shape))
        for t in outputs
    )
    texts = [bytes(join_parts(response_wire.body))]
    if "json" in expect:
        texts.append(expect["json"].encode())
        assert list(json.loads(texts[0])) == list(json.loads(texts[1]))
    elif "json_b64" in expect:
        texts.append(base64.b64decode(expect["json_b64"]))
    if not outputs or (case["form"] == "row" and outputs[0].shape[0] == 0):
        return  # a response without rows cannot be read
    for text in texts:
        vector = Vector(
            "tfs-rest", case["id"], "", "", HttpResponse(200, body=(text,)),
            InferResponse("m", outputs=tuple(sorted(outputs, key=lambda t: t.name))),
            operation=InferRequest("m"),
            model=ModelMetadata("m", outputs=tuple(sorted(declared, key=lambda t: t.name))),
        )  # fmt: skip
        check_vector(CODEC, vector)


def _is_same_number(value: Any, expected: Any, datatype: Datatype) -> bool:
    dtype = {Datatype.FP32: np.float32, Datatype.FP64: np.float64}[datatype]
    return bool(np.array_equal(dtype(value), dtype(expected), equal_nan=True))


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64])
def test_numbers_read_back_to_the_same_value(datatype: Datatype) -> None:
    """infergate writes the fewest digits that identify the value. TensorFlow Serving's digits may
    differ.
    """
    compared = 0
    for case in CASES:
        infos = case.get("tensors", {})
        if case["direction"] != "response" or "json" not in case["expect"] or len(infos) != 1:
            continue
        ((name, info),) = infos.items()
        if info["dtype"] != datatype.value or case.get("form") != "column":
            continue
        response = InferResponse("m", outputs=(_tensor(name, info),))
        response_wire = CODEC.build_response(response, ParsedRequest(InferRequest("m")))
        values = json.loads(bytes(join_parts(response_wire.body)))["outputs"]
        expected_values = json.loads(case["expect"]["json"])["outputs"]
        for value, expected in zip(np.ravel(values), np.ravel(expected_values), strict=True):
            assert _is_same_number(value, expected, datatype)
            compared += 1
    assert compared > 5


@pytest.mark.parametrize("case", [c for c in CASES if c["direction"] == "error"], ids=str)
def test_error_bodies(case: dict[str, Any]) -> None:
    text = json.loads(case["expect"]["json"])["error"]
    response_wire = CODEC.build_error(GatewayError(Kind.BAD_REQUEST, text))
    if len(text) < 2000:
        assert json.loads(bytes(join_parts(response_wire.body))) == {"error": text}
    assert response_wire.headers["content-type"] == "application/json"
    assert bytes(join_parts(response_wire.body)).startswith(b'{\n    "error": "')


# ---- paths, metadata and status

REST_CASES = _lines("rest.jsonl")
PATHS = [case for case in REST_CASES if "path" in case]
ACCEPTED_PATHS = {
    "/v1/models/m:predict?",  # the transport drops a question mark without a query
}


@pytest.mark.parametrize("case", PATHS, ids=[case["id"] for case in PATHS])
def test_paths_match_as_recorded(case: dict[str, Any]) -> None:
    path, _, query = case["path"].partition("?")
    wire = HttpRequest(case["http_method"], path, query)
    expect = case["expect"]
    if case["path"] in ACCEPTED_PATHS:
        assert match_path(wire).spec.name == "m"
        return
    text = expect.get("malformed") or expect.get("status", {}).get("message")
    if (expect.get("method") or "predict") not in ("predict", "classify", "regress"):
        text = f"Malformed request: {case['http_method']} {path}"  # the codec refuses the method
    if text:
        error = refused(CODEC.summarize, wire)
        assert error.kind is Kind.BAD_REQUEST
        assert error.public == text
        return
    match = match_path(wire)
    spec = match.spec
    assert (spec.name, spec.version, spec.label or None) == (
        expect["model"], expect["version"], expect["label"]
    )  # fmt: skip
    action = expect["method"] or expect["subresource"]
    if not spec.name:
        assert match.action == "server"
    elif action in ("predict", "classify", "regress", "metadata"):
        assert match.action == action
    else:
        assert match.action == "status"


DESCRIPTIONS = [case for case in REST_CASES if "proto_b64" in case]


@pytest.mark.parametrize("case", DESCRIPTIONS, ids=[case["id"] for case in DESCRIPTIONS])
def test_metadata_and_status(case: dict[str, Any]) -> None:
    expected = case["expect"]["json"].encode()
    proto = base64.b64decode(case["proto_b64"])
    is_status = case["id"].startswith("status")
    operation: Any = ModelIndexRequest(model="m") if is_status else ModelMetadataRequest("m")
    wire = HttpResponse(200, body=(expected,))
    if case["id"] == "metadata.no_signatures":
        error = refused(CODEC.parse_response, wire, operation, DEFAULT_LIMITS)
        assert "has no signature" in error.public
        return
    parsed_response = CODEC.parse_response(wire, operation, DEFAULT_LIMITS)
    path = "/v1/models/m" if is_status else "/v1/models/m/metadata"
    parsed = CODEC.parse_request(HttpRequest("GET", path), DEFAULT_LIMITS)
    wire = CODEC.build_response(parsed_response, parsed)
    response_document = json.loads(bytes(join_parts(wire.body)))
    document = json.loads(expected)
    if is_status:
        states = pb.GetModelStatusResponse.FromString(proto).model_version_status
        assert len(parsed_response.models) == len(states)
        assert response_document.pop("name") == "m"
        assert response_document.pop("ready") == any(state.state == 30 for state in states)
        assert response_document == document
        return
    signatures = document["metadata"]["signature_def"]["signature_def"]
    rewritten = response_document["metadata"]["signature_def"]["signature_def"]
    assert set(rewritten) == set(signatures)
    for name, signature in signatures.items():
        for side in ("inputs", "outputs"):
            for alias, info in signature[side].items():
                rewritten_info = rewritten[name][side][alias]
                assert rewritten_info["dtype"] == info["dtype"]
                sizes = [dim["size"] for dim in info["tensor_shape"]["dim"]]
                is_unknown = info["tensor_shape"]["unknown_rank"]
                assert [dim["size"] for dim in rewritten_info["tensor_shape"]["dim"]] == (
                    ["-1"] if is_unknown else sizes
                )
        assert set(rewritten[name]) == set(signature)
