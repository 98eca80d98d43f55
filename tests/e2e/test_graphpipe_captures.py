"""Replays recorded requests of GraphPipe's clients byte for byte to infergate with a V2 server
behind it. The server's models behave like the recorded servers, so the responses are equal unless a
recorded server was wrong.

The recordings are in tests/vectors/graphpipe: requests in ``request-<case>-<server>``, and most
responses in ``answer-<case>-<server>``. Each recorded server has a listener with one model, and a
gRPC server in this file serves the models. Like the clients, the tests read responses with the code
that flatc generates.
"""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from graphpipe_schema.InferResponse import InferResponse
from graphpipe_schema.MetadataResponse import MetadataResponse
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from e2e.running import LISTENERS, started_infergate
from faults.peer import Client, post
from peers.support.process import free_ports

VECTORS = Path(__file__).parents[1] / "vectors" / "graphpipe"
SERVERS = (
    "go-echo", "go-typed", "go-raw", "go-cache", "go-nodef", "go-batcher", "pyid-fb19"
)  # fmt: skip
REQUESTS = sorted(folder.name.removeprefix("request-") for folder in VECTORS.glob("request-*"))
INVALID_REQUESTS = sorted(folder.name for folder in VECTORS.glob("bad-*"))

NEEDLESSLY_REJECTED = {
    "goc-f16-go-echo", "goc-scalar-go-echo", "py19-emptyout-go-raw", "py19-nodefout-go-nodef",
}  # fmt: skip
"""Requests that the recorded server needlessly rejected."""
INCORRECTLY_ANSWERED = {
    "py19-cachescalar-go-cache": "its cache returned an entry of another shape",
    "py19-cachestr-go-cache": "its cache corrupts strings",
    "py19-multi-oneout-go-typed": "graphpipe-go's Serve ignores output names",
    "py19-multi-swapped-go-typed": "graphpipe-go's Serve ignores output names",
}
"""Requests that the recorded server answered incorrectly."""


# ---- the models


class ModelError(Exception):
    """The model rejects the request."""


def request_parameters(request: pb.ModelInferRequest) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in request.parameters.items()
    }


def input_tensors(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        each.name: (each.datatype, list(each.shape), raw)
        for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def echo(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    action, _, reason = request_parameters(request).get("graphpipe_config", "").partition(":")
    if action in ("fail", "panic"):
        raise ModelError(reason)
    return {
        name.replace("input", "output"): tensor for name, tensor in input_tensors(request).items()
    }


def typed(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    parameters, tensors = request_parameters(request), input_tensors(request)
    if "fail" in parameters:
        raise ModelError(parameters["fail"])
    for name in tensors:
        if name not in ("input0", "input1"):
            raise ModelError(f"Unexpected input for '{name}' was sent")
    if len(tensors) < 2:
        raise ModelError(f"{len(tensors)} inputs sent but 2 are required")
    a, b = (np.frombuffer(tensors[name][2], "<f4") for name in ("input0", "input1"))
    scale = np.float32(parameters.get("scale", 1))
    _, shape, _ = tensors["input0"]
    return {
        "output0": ("FP32", shape, ((a + b) * scale).tobytes()),
        "output1": ("FP32", shape, ((a - b) * scale).tobytes()),
    }


def case(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / name / "case.json").read_text())
    return document


def metadata(server: str) -> dict[str, Any]:
    """Return the server's metadata. All raw echo servers have the same metadata."""
    captures = {"go-echo": "goc-f32-go-echo", "go-typed": "goc-two-go-typed"}
    model: dict[str, Any] = case("request-" + captures.get(server, "goc-f32-go-raw"))["model"]
    return model


class Models(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerMetadataResponse(name="test", version="1")

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = pb.ModelMetadataResponse(name=request.name)
        for field in ("inputs", "outputs"):
            for each in metadata(request.name)[field]:
                getattr(response, field).add(
                    name=each["name"], datatype=each["datatype"], shape=each["shape"]
                )
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            outputs = (typed if request.model_name == "go-typed" else echo)(request)
        except ModelError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        response = pb.ModelInferResponse(model_name=request.model_name)
        for name in [each.name for each in request.outputs] or outputs:
            if name not in outputs:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Could not find output '{name}'")
            datatype, shape, raw = outputs[name]
            response.outputs.add(name=name, datatype=datatype, shape=shape)
            response.raw_output_contents.append(raw)
        return response


@contextmanager
def models() -> Iterator[str]:
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Models(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(0).wait()


@pytest.fixture(scope="module")
def listeners() -> Iterator[Mapping[str, str]]:
    """Map each server to the address of its listener."""
    addresses = {
        server: f"127.0.0.1:{port}"
        for server, port in zip(SERVERS, free_ports(len(SERVERS)), strict=True)
    }
    lines = [f'    - {{{{address: "{addresses[each]}", model: {each}}}}}\n' for each in SERVERS]
    with models() as address:
        config = f"""
backends: {{v2: {{protocol: v2-grpc, endpoints: ["grpc://{address}"], profile: generic}}}}
routes: [{{model: "*", backend: v2}}]
"""
        with started_infergate(config, LISTENERS + "  graphpipe:\n" + "".join(lines)):
            yield addresses


# ---- responses, as clients read them


class FakeSocket(io.BytesIO):
    def makefile(self, *_: Any, **__: Any) -> FakeSocket:
        return self


def parse_recorded_response(data: bytes) -> tuple[int, str, bytes]:
    """Return the status, content type and body of a recorded response."""
    response = http.client.HTTPResponse(FakeSocket(data))  # type: ignore[arg-type]
    response.begin()
    return response.status, response.getheader("content-type", ""), response.read()


def recorded(name: str) -> bytes:
    return (VECTORS / name / "wire.http").read_bytes()


def tensors(body: bytes, *, strict: bool) -> list[tuple[int, list[int], list[bytes]]]:
    """Return type, shape and data of each output. With ``strict``, assert that all vectors that
    clients require are present."""
    response = InferResponse.GetRootAs(body)
    if strict:
        assert not response.OutputTensorsIsNone()
        assert response.ErrorsLength() == 0
    outputs = []
    for index in range(response.OutputTensorsLength()):
        tensor = response.OutputTensors(index)
        if strict:
            assert not tensor.ShapeIsNone()
            assert not tensor.DataIsNone()
            assert not tensor.StringValIsNone()
        data = [bytes(tensor.Data(i) for i in range(tensor.DataLength()))]
        strings = [tensor.StringVal(i) for i in range(tensor.StringValLength())]
        shape = [tensor.Shape(i) for i in range(tensor.ShapeLength())]
        outputs.append((tensor.Type(), shape, data + strings))
    return outputs


def replay(address: str, data: bytes) -> tuple[int, str, bytes]:
    with Client(address) as client:
        client.send(data)
        response = client.answer()
    return response.status, response.headers["content-type"], response.body


def server_of(name: str) -> str:
    return next(server for server in SERVERS if name.endswith(server))


def is_readable_error(response: tuple[int, str, bytes]) -> bool:
    """Return whether the Go, JavaScript, Python and TensorFlow clients would detect the error."""
    status, content_type, body = response
    is_text = content_type.startswith("text/plain")
    return is_text and 400 <= status < 500 and len(body.splitlines()) == 1


@pytest.mark.parametrize("name", [each for each in REQUESTS if "-meta-" not in each])
def test_replayed_inferences_get_correct_responses(listeners: Mapping[str, str], name: str) -> None:
    response = replay(listeners[server_of(name)], recorded(f"request-{name}"))
    if (VECTORS / f"answer-{name}").exists() and name not in {
        *NEEDLESSLY_REJECTED,
        *INCORRECTLY_ANSWERED,
    }:
        status, _, body = parse_recorded_response(recorded(f"answer-{name}"))
        if status != http.HTTPStatus.OK:
            assert is_readable_error(response), response
            return
        assert response[0] == http.HTTPStatus.OK, response
        assert tensors(response[2], strict=True) == tensors(body, strict=False)
        return
    if "error" in case(f"request-{name}") or "panic" in name:
        assert is_readable_error(response), response
        return
    assert response[0] == http.HTTPStatus.OK, response
    assert tensors(response[2], strict=True) == expected_outputs(name)


def expected_outputs(name: str) -> list[tuple[int, list[int], list[bytes]]]:
    """Return the outputs of a correct response that was not recorded."""
    types = {"UINT8": 1, "FP16": 9, "FP32": 10, "BYTES": 12}
    numbers = {
        "py19-multi-go-typed": [[11, 22, 33], [-9, -18, -27]],
        "py19-multi-oneout-go-typed": [[-9, -18, -27]],
        "py19-multi-swapped-go-typed": [[-9, -18, -27], [11, 22, 33]],
    }
    if name in numbers:
        return [(10, [1, 3], [np.array(values, "<f4").tobytes()]) for values in numbers[name]]
    outputs = []
    for each in case(f"request-{name}")["canonical"]["inputs"]:
        data = bytes.fromhex(each["data"]) if each["datatype"] != "BYTES" else b""
        strings = split(bytes.fromhex(each["data"])) if each["datatype"] == "BYTES" else []
        outputs.append((types[each["datatype"]], each["shape"], [data, *strings]))
    return outputs


def split(data: bytes) -> list[bytes]:
    elements = []
    while data:
        length = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + length])
        data = data[4 + length :]
    return elements


@pytest.mark.parametrize("name", [each for each in REQUESTS if "-meta-" in each])
def test_metadata(listeners: Mapping[str, str], name: str) -> None:
    server = server_of(name)
    status, _, body = replay(listeners[server], recorded(f"request-{name}"))
    assert status == http.HTTPStatus.OK
    response = MetadataResponse.GetRootAs(body)
    expected = metadata(server)
    assert response.Name() == server.encode()
    inputs = [response.Inputs(i).Name().decode() for i in range(response.InputsLength())]
    outputs = [response.Outputs(i).Name().decode() for i in range(response.OutputsLength())]
    assert inputs == [each["name"] for each in expected["inputs"]]
    assert outputs == [each["name"] for each in expected["outputs"]]


@pytest.mark.parametrize("name", INVALID_REQUESTS)
def test_a_response_to_each_invalid_request(listeners: Mapping[str, str], name: str) -> None:
    """The recorded server usually closed the connection after these requests."""
    body = recorded(name).partition(b"\r\n\r\n")[2]
    response = post(listeners["go-raw"], "/", body)
    if "error" in case(name):
        assert is_readable_error(
            (response.status, response.headers["content-type"], response.body)
        ), response
    else:
        assert response.status == http.HTTPStatus.OK, response
