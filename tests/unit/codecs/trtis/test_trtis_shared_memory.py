"""Captured shared memory exchanges, with real regions, get the real server's responses. Requests to
servers that read regions themselves, and their responses, are built and parsed."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trtis_captures import GRPC, HTTP, PACKAGE
from trtis_gateway import MODELS, perform

from gateway_errors import raises_kind
from infergate.codecs.base import Codec, PartialInferRequest
from infergate.codecs.profiles import GENERIC
from infergate.codecs.trtis import GRPC as GRPC_PLUGIN
from infergate.codecs.trtis import HTTP as HTTP_PLUGIN
from infergate.codecs.trtis import messages as pb
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    Acknowledgement,
    InferRequest,
    Operation,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.gateway.shared_memory import SharedMemory, uses_shared_memory

CAPTURED = "trtisgold"
KEY = f"ig{os.getpid():07d}"[-len(CAPTURED) :]
"""The key of the test's regions. It has the length of the captured key, which it replaces."""
CALL = RequestContext("test")
SHARED_MEMORY_CASE = re.compile(r"\d+_shm_")


@pytest.fixture(autouse=True)
def regions() -> Iterator[dict[str, Path]]:
    assert len(KEY) == len(CAPTURED)
    paths = {key: Path(f"/dev/shm/{key}") for key in (KEY, f"{KEY}g")}
    for path in paths.values():
        path.write_bytes(np.array([*range(16), *[1] * 16, *[0] * 32], "<i4").tobytes())
    yield paths
    for path in paths.values():
        path.unlink()


async def respond(codec: Codec[Any, Any], memory: SharedMemory, wire: Any) -> Any:
    try:
        parsed = codec.parse_request(wire, DEFAULT_LIMITS)
        if isinstance(parsed, PartialInferRequest):
            parsed = parsed.complete(MODELS[parsed.model].metadata)
        operation: Any = parsed.operation
        if not isinstance(operation, InferRequest):
            response = await memory.perform(operation, CALL)
        elif uses_shared_memory(operation):
            backend: Any = None
            async with memory.stage(operation, backend) as staged:
                response = await staged.write_outputs(perform(staged.request))  # type: ignore[arg-type]
        else:
            response = perform(operation)
        return codec.build_response(response, parsed)
    except GatewayError as error:
        return codec.build_error(error, wire)


def with_test_key(text: str) -> str:
    return text.replace(CAPTURED, KEY)


async def test_captured_http_exchanges_get_the_captured_responses(regions: dict[str, Path]) -> None:
    codec = HTTP_PLUGIN.create({"server_id": "trtis-gold"})
    memory = SharedMemory(DEFAULT_LIMITS, enabled=True)
    cases = [case for case in HTTP if SHARED_MEMORY_CASE.match(case.name)]
    assert len(cases) == 14
    for case in cases:
        request = replace(case.request, path=with_test_key(case.request.path))
        response: HttpResponse = await respond(codec, memory, request)
        assert response.status == case.response.status, case.name
        body = with_test_key(bytes(case.response.body).decode("latin-1")).encode("latin-1")
        assert bytes(join_parts(response.body)) == body, case.name
        for name, header in response.headers.items():
            expected = with_test_key(case.response.headers[name.lower()])
            number = re.compile(r"request_id: \d+")
            assert number.sub("", header) == number.sub("", expected), case.name
        if case.name == "150_shm_infer":
            values = np.frombuffer(regions[KEY].read_bytes(), "<i4")
            assert values[32:48].tolist() == list(range(1, 17))


async def test_captured_grpc_exchanges_get_the_captured_responses(regions: dict[str, Path]) -> None:
    codec = GRPC_PLUGIN.create({"server_id": "trtis-gold"})
    memory = SharedMemory(DEFAULT_LIMITS, enabled=True)
    cases = [case for case in GRPC if SHARED_MEMORY_CASE.match(case.name)]
    assert len(cases) == 8
    for case in cases:
        (request,) = case.requests
        message = bytes(join_parts(request.message)).replace(CAPTURED.encode(), KEY.encode())
        response = await respond(codec, memory, replace(request, message=(message,)))
        kind = pb.InferResponse if "infer" in case.name else pb.SharedMemoryControlResponse
        captured = case.responses[0].replace(CAPTURED.encode(), KEY.encode())
        actual, expected = kind.FromString(join_parts(response.message)), kind.FromString(captured)
        actual.request_status.request_id = expected.request_status.request_id
        assert actual.SerializeToString(deterministic=True) == expected.SerializeToString(
            deterministic=True
        ), case.name
        if "infer" in case.name:
            values = np.frombuffer(regions[f"{KEY}g"].read_bytes(), "<i4")
            assert values[32:48].tolist() == list(range(1, 17))


# ---- servers that read regions themselves

SYSTEM = SharedMemoryRegisterRequest("reg0", "/key", 8, 256)
CUDA = SharedMemoryRegisterRequest("gpu", size=64, device=1, handle=b"h" * 64)


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        (SYSTEM, "register/reg0//key/8/256"),
        (replace(SYSTEM, key="key"), "register/reg0//key/8/256"),
        (CUDA, "cudaregister/gpu/64/1"),
        (SharedMemoryUnregisterRequest("reg0"), "unregister/reg0"),
        (SharedMemoryUnregisterRequest(cuda=False), "unregisterall"),
    ],
)
def test_http_requests_name_the_region_in_the_path(operation: Any, path: str) -> None:
    codec = HTTP_PLUGIN.create({})
    wire = codec.build_request(operation, GENERIC)
    assert isinstance(wire, HttpRequest)
    assert (wire.method, wire.path) == ("POST", f"/api/sharedmemorycontrol/{path}")
    assert bytes(join_parts(wire.body)) == (operation.handle if operation is CUDA else b"")
    status = {"NV-Status": 'code: SUCCESS server_id: "s"'}
    success = HttpResponse(200, status)
    assert codec.parse_response(success, operation, DEFAULT_LIMITS) == Acknowledgement()
    status = {"NV-Status": 'code: ALREADY_EXISTS msg: "already"'}
    with raises_kind(Kind.ALREADY_EXISTS, match="already"):
        codec.parse_response(HttpResponse(400, status), operation, DEFAULT_LIMITS)


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "x" * 9000, "é"])
def test_names_that_cannot_be_in_a_path(name: str) -> None:
    for operation in (replace(SYSTEM, name=name), replace(SYSTEM, key=f"/{name}")):
        with raises_kind(Kind.UNSUPPORTED, match="cannot be used in a path"):
            HTTP_PLUGIN.create({}).build_request(operation, GENERIC)


@pytest.mark.parametrize(
    "operation",
    [SYSTEM, CUDA, SharedMemoryUnregisterRequest("reg0"), SharedMemoryUnregisterRequest()],
    ids=lambda operation: type(operation).__name__,
)
def test_grpc_requests_round_trip(operation: Operation) -> None:
    codec = GRPC_PLUGIN.create({})
    wire = codec.build_request(operation, GENERIC)
    assert isinstance(wire, RpcRequest)
    assert wire.method == f"{PACKAGE}SharedMemoryControl"
    parsed = codec.parse_request(wire, DEFAULT_LIMITS)
    assert not isinstance(parsed, PartialInferRequest)
    assert parsed.operation == operation
    response = pb.SharedMemoryControlResponse()
    response.request_status.code = pb.CODES["SUCCESS"]
    rpc_response = RpcResponse((response.SerializeToString(),))
    assert codec.parse_response(rpc_response, operation, DEFAULT_LIMITS) == Acknowledgement()


@pytest.mark.parametrize("name", ["INPUT0", "INPUT1"])
def test_a_size_that_contradicts_the_shape_is_refused(name: str) -> None:
    sizes = {"INPUT0": 64, "INPUT1": 64, name: 60}
    inputs = " ".join(
        f'input {{ name: "{input_name}" shared_memory {{ name: "r" byte_size: {size} }} }}'
        for input_name, size in sizes.items()
    )
    headers = {"nv-inferrequest": f"batch_size: 1 {inputs}"}
    wire = HttpRequest("POST", "/api/infer/simple", "", headers)
    parsed = HTTP_PLUGIN.create({}).parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(parsed, PartialInferRequest)
    with pytest.raises(GatewayError, match=f"size 60 for input '{name}', expecting 64"):
        parsed.complete(MODELS["simple"].metadata)
