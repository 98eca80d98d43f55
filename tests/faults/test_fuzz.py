"""Tests valid requests with random changes, and random documents and messages. No response is an
internal error, and the process survives. Add failing inputs as examples to their test."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults.peer import Client, post
from faults.rpc import INFER, call, channel
from faults.watch import assert_healthy, counted, unharmed
from searching import examples

CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: same, backend: ours, rewrite: {model: identity}}
  - {model: "*", backend: ours}
limits: {header_time: 1s, idle_body_time: 1s, body: 1MiB}
"""
FUZZ = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_METHODS = ("ModelInfer", "ModelMetadata", "ModelReady", "RepositoryIndex", "ServerReady")


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    channel: grpc.Channel


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with started_infergate(CONFIG) as gateway, channel(gateway.grpc) as rpc_channel:
        assert call(rpc_channel, MESSAGES[0]).code is grpc.StatusCode.OK
        with unharmed(gateway, lambda: http_status(gateway, *VALID_REQUESTS[0]) == 200):
            yield Harness(gateway, rpc_channel)
        assert_healthy(gateway)
        assert call(rpc_channel, MESSAGES[0]).code is grpc.StatusCode.OK


@pytest.fixture(autouse=True)
def all_counted(harness: Harness) -> Iterator[None]:
    """Check that client errors are counted as client errors, and that no error is counted as
    internal."""
    before = counted(harness.gateway, outcome="bad_request")
    yield
    assert counted(harness.gateway, outcome="bad_request") > before
    assert counted(harness.gateway, outcome="internal") == 0


def _inputs(datatype: str, shape: list[int], data: object) -> list[dict[str, object]]:
    return [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name in ("INPUT0", "INPUT1")
    ]


def _post(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


_SIZED = [
    {"name": n, "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}
    for n in ("INPUT0", "INPUT1")
]
_BINARY = json.dumps({"inputs": _SIZED, "parameters": {"binary_data_output": True}}).encode()
_JSON = [
    {"id": "1", "inputs": _inputs("INT32", [2, 1], [[1], [-2]]), "outputs": [{"name": "OUTPUT0"}]},
    {"inputs": _inputs("FP32", [3], [0.5, 1e30, -7])},
    {"inputs": _inputs("BYTES", [2], ["é\\u0000", ""])},
    {"inputs": _inputs("BOOL", [1], [True]), "parameters": {"x": [1, {"y": None}], "z": 2**64}},
    {"inputs": [{"name": "IMAGE", "datatype": "FP32", "shape": [1, 8, 8], "data": [1] * 64}],
     "outputs": [{"name": "SCORES", "parameters": {"classification": 3}}]},
]  # fmt: skip
_PATH = "/v2/models/identity/infer"
VALID_REQUESTS: list[tuple[str, bytes, dict[str, str]]] = [
    (_PATH, _BINARY + b"abcdwxyz", {"Inference-Header-Content-Length": str(len(_BINARY))}),
    *((_PATH, json.dumps(each).encode(), {}) for each in _JSON[:4]),
    ("/v2/models/digits/infer", json.dumps(_JSON[4]).encode(), {}),
    (_PATH, gzip.compress(json.dumps(_JSON[0]).encode()), {"Content-Encoding": "gzip"}),
    ("/v2/models/same/infer", b"x" * 16, {"Inference-Header-Content-Length": "0"}),
    ("/v2/repository/index", b'{"ready":true}', {}),
]


def _message(datatype: str, shape: list[int], raw: bytes) -> bytes:
    request = pb.ModelInferRequest(model_name="identity", id="i", model_version="1")
    request.parameters["p"].double_param = 0.5
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    return bytes(request.SerializeToString())


def _typed() -> bytes:
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        created = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        created.contents.int_contents.extend(range(-8, 8))
    return bytes(request.SerializeToString())


MESSAGES = [
    _message("FP32", [2], bytes(8)),
    _message("INT64", [1, 1], b"\xff" * 8),
    _typed(),
    bytes(pb.ModelMetadataRequest(name="digits", version="1").SerializeToString()),
]

# ---- corruption of bytes ---------------------------------------------------------------------

_PIECES = [
    b"", b"0", b"-1", b"1e999", b"null", b"NaN", b"{}", b"[]", b'"', b"\\u0000", b"\\ud800",
    b"\xff", b"[" * 150, b"9" * 400, b"18446744073709551616", b"\r\n", b"\0",
    b"\xff\xff\xff\xff\x0f", b"\x80" * 11, b"BYTES", b"FP16", b'"data":',
    b'"shape":[0],', b",", b"%00", b"..",
]  # fmt: skip


@st.composite
def corrupted(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """Return one of ``originals`` with a few pieces deleted, repeated or replaced."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        piece = draw(
            st.sampled_from(_PIECES) | st.binary(max_size=8) | st.just(data[start:end] * 2)
        )
        data = data[:start] + piece + data[end:]
    return data


def http_status(gateway: Infergate, path: str, body: bytes, headers: dict[str, str]) -> int:
    return post(gateway.http, path, body, headers).status


def is_expected(status: int) -> bool:
    """Return whether the request was served or is a client error. 501 means a valid request for an
    unsupported feature."""
    return status == 200 or 400 <= status < 500 or status == 501


@FUZZ
@given(st.data())
def test_corrupted_http_bodies_are_handled(harness: Harness, data: st.DataObject) -> None:
    path, body, headers = data.draw(st.sampled_from(VALID_REQUESTS))
    changed = data.draw(corrupted([body]))
    if "Inference-Header-Content-Length" in headers and data.draw(st.booleans()):
        headers = {"Inference-Header-Content-Length": str(data.draw(st.integers(0, 300)))}
    assert is_expected(http_status(harness.gateway, path, changed, headers))


@FUZZ
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["INPUT0", "INPUT1", "INT8", "BYTES", "FP16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["id", "inputs", "outputs", "parameters", "name", "shape", "datatype", "data",
             "binary_data_size", "classification"]
        ), inner, max_size=6),
    max_leaves=25,
))  # fmt: skip
@example({"inputs": [{"name": "INPUT0", "datatype": "INT8", "shape": [], "data": 1}]})
def test_random_json_documents_are_handled(harness: Harness, document: object) -> None:
    body = json.dumps(document).encode()
    assert is_expected(http_status(harness.gateway, _PATH, body, {}))


_REQUESTS = [
    _post(path, body, "Connection: close", *(f"{name}: {value}" for name, value in headers.items()))
    for path, body, headers in VALID_REQUESTS
]


@FUZZ
@given(wire=corrupted(_REQUESTS))
def test_corrupted_http_requests_are_handled(harness: Harness, wire: bytes) -> None:
    """The input is a complete request including its head. An incomplete request is abandoned after
    a while."""
    with Client(harness.gateway.http) as client:
        client.send(wire)
        client.socket.settimeout(0.1)
        try:
            data = client.read_to_end()
        except TimeoutError:
            return
    assert data.startswith(b"HTTP/1.1 "), data
    for status in re.findall(rb"^HTTP/1\.1 ([0-9]+) ", data, re.MULTILINE):
        assert is_expected(int(status)), data


@FUZZ
@given(message=corrupted(MESSAGES), method=st.sampled_from(_METHODS))
def test_corrupted_messages_are_handled(harness: Harness, message: bytes, method: str) -> None:
    status = call(harness.channel, message, f"/inference.GRPCInferenceService/{method}")
    assert status.code in {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }, status


@st.composite
def infer_requests(draw: st.DrawFn) -> bytes:
    """Return a protobuf message that is well-formed, but rarely a valid request."""
    request = pb.ModelInferRequest(model_name="identity")
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=24), max_size=3)))
    names = st.sampled_from(["INPUT0", "INPUT1"]) | st.text(max_size=3)
    for name in draw(st.lists(names, max_size=3)):
        datatypes = st.sampled_from(["FP32", "INT8", "BYTES", "BF16"]) | st.text(max_size=4)
        dimensions = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
        created = request.inputs.add(name=name, datatype=draw(datatypes))
        created.shape.extend(draw(st.lists(dimensions, max_size=4)))
        elements = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)
        created.contents.int_contents.extend(draw(elements))
    return bytes(request.SerializeToString())


@FUZZ
@given(infer_requests())
def test_random_message_fields_are_handled(harness: Harness, message: bytes) -> None:
    status = call(harness.channel, message, INFER)
    assert status.code in {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}, status
