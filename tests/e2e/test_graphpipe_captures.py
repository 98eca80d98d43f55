"""Replays recorded requests of GraphPipe's clients byte for byte to infergate with a V2 server
behind it. The server's models behave as the recorded servers did, so the responses are equal.

The recordings are the codec's vectors: ``request-<case>-<server>`` and, for most cases,
``answer-<case>-<server>``. Each recorded server has a listener of one model, and a gRPC server in
this file has the models. Like the clients, the tests read responses with the code that flatc
generates.
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
BAD = sorted(folder.name for folder in VECTORS.glob("bad-*"))

TAKEN = {
    "goc-f16-go-echo", "goc-scalar-go-echo", "py19-emptyout-go-raw", "py19-nodefout-go-nodef",
}  # fmt: skip
"""Requests that the recorded server rejected without need."""
MISTAKEN = {
    "py19-cachescalar-go-cache": "its cache gave what it had of another shape",
    "py19-cachestr-go-cache": "its cache spoils strings",
    "py19-multi-oneout-go-typed": "graphpipe-go's Serve does not look at output names",
    "py19-multi-swapped-go-typed": "graphpipe-go's Serve does not look at output names",
}
"""Requests that the recorded server answered incorrectly."""


# ---- the models


class Failed(Exception):  # noqa: N818
    """An error of the model."""


def report(request: pb.ModelInferRequest) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in request.parameters.items()
    }


def given(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        each.name: (each.datatype, list(each.shape), raw)
        for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def echo(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    word, _, reason = report(request).get("graphpipe_config", "").partition(":")
    if word in ("fail", "panic"):
        raise Failed(reason)
    return {name.replace("input", "output"): tensor for name, tensor in given(request).items()}


def typed(request: pb.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    parameters, tensors = report(request), given(request)
    if "fail" in parameters:
        raise Failed(parameters["fail"])
    for name in tensors:
        if name not in ("input0", "input1"):
            raise Failed(f"Unexpected input for '{name}' was sent")
    if len(tensors) < 2:
        raise Failed(f"{len(tensors)} inputs sent but 2 are required")
    a, b = (np.frombuffer(tensors[name][2], "<f4") for name in ("input0", "input1"))
    scale = np.float32(parameters.get("scale", 1))
    _, shape, _ = tensors["input0"]
    return {
        "output0": ("FP32", shape, ((a + b) * scale).tobytes()),
        "output1": ("FP32", shape, ((a - b) * scale).tobytes()),
    }


def case(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((VECTORS / name / "case.json").read_text())
    return read


def metadata(server: str) -> dict[str, Any]:
    """Return the server's metadata. All raw echo servers have the same metadata."""
    known = {"go-echo": "goc-f32-go-echo", "go-typed": "goc-two-go-typed"}
    model: dict[str, Any] = case("request-" + known.get(server, "goc-f32-go-raw"))["model"]
    return model


class Models(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerMetadataResponse(name="test", version="1")

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = pb.ModelMetadataResponse(name=request.name)
        for field in ("inputs", "outputs"):
            for each in metadata(request.name)[field]:
                getattr(answer, field).add(
                    name=each["name"], datatype=each["datatype"], shape=each["shape"]
                )
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            created = (typed if request.model_name == "go-typed" else echo)(request)
        except Failed as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        answer = pb.ModelInferResponse(model_name=request.model_name)
        for name in [each.name for each in request.outputs] or created:
            if name not in created:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Could not find output '{name}'")
            datatype, shape, raw = created[name]
            answer.outputs.add(name=name, datatype=datatype, shape=shape)
            answer.raw_output_contents.append(raw)
        return answer


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
    at = {
        server: f"127.0.0.1:{port}"
        for server, port in zip(SERVERS, free_ports(len(SERVERS)), strict=True)
    }
    lines = [f'    - {{{{address: "{at[each]}", model: {each}}}}}\n' for each in SERVERS]
    with models() as address:
        config = f"""
backends: {{v2: {{protocol: v2-grpc, endpoints: ["grpc://{address}"], profile: generic}}}}
routes: [{{model: "*", backend: v2}}]
"""
        with started_infergate(config, LISTENERS + "  graphpipe:\n" + "".join(lines)):
            yield at


# ---- answers, as clients read them


class Read(io.BytesIO):
    def makefile(self, *_: Any, **__: Any) -> Read:
        return self


def answered(data: bytes) -> tuple[int, str, bytes]:
    """Return the status, content type and body of a recorded response."""
    response = http.client.HTTPResponse(Read(data))  # type: ignore[arg-type]
    response.begin()
    return response.status, response.getheader("content-type", ""), response.read()


def recorded(name: str) -> bytes:
    return (VECTORS / name / "wire.http").read_bytes()


def tensors(body: bytes, *, ours: bool) -> list[tuple[int, list[int], list[bytes]]]:
    """Return type, shape and data of each output. If ``ours`` is set, every vector must exist,
    because clients require it."""
    response = InferResponse.GetRootAs(body)
    if ours:
        assert not response.OutputTensorsIsNone()
        assert response.ErrorsLength() == 0
    found = []
    for index in range(response.OutputTensorsLength()):
        tensor = response.OutputTensors(index)
        if ours:
            assert not tensor.ShapeIsNone()
            assert not tensor.DataIsNone()
            assert not tensor.StringValIsNone()
        data = [bytes(tensor.Data(i) for i in range(tensor.DataLength()))]
        strings = [tensor.StringVal(i) for i in range(tensor.StringValLength())]
        shape = [tensor.Shape(i) for i in range(tensor.ShapeLength())]
        found.append((tensor.Type(), shape, data + strings))
    return found


def replayed(address: str, data: bytes) -> tuple[int, str, bytes]:
    with Client(address) as client:
        client.send(data)
        answer = client.answer()
    return answer.status, answer.headers["content-type"], answer.body


def server_of(name: str) -> str:
    return next(server for server in SERVERS if name.endswith(server))


def is_readable_error(answer: tuple[int, str, bytes]) -> bool:
    """Return whether the Go, JavaScript, Python and TensorFlow clients would detect the error."""
    status, kind, body = answer
    return 400 <= status < 500 and kind.startswith("text/plain") and len(body.splitlines()) == 1


@pytest.mark.parametrize("name", [each for each in REQUESTS if "-meta-" not in each])
def test_an_inference(listeners: Mapping[str, str], name: str) -> None:
    answer = replayed(listeners[server_of(name)], recorded(f"request-{name}"))
    if (VECTORS / f"answer-{name}").exists() and name not in {*TAKEN, *MISTAKEN}:
        status, _, body = answered(recorded(f"answer-{name}"))
        if status != http.HTTPStatus.OK:
            assert is_readable_error(answer), answer
            return
        assert answer[0] == http.HTTPStatus.OK, answer
        assert tensors(answer[2], ours=True) == tensors(body, ours=False)
        return
    if "error" in case(f"request-{name}") or "panic" in name:
        assert is_readable_error(answer), answer
        return
    assert answer[0] == http.HTTPStatus.OK, answer
    assert tensors(answer[2], ours=True) == due(name)


def due(name: str) -> list[tuple[int, list[int], list[bytes]]]:
    """Return an expected response that was not recorded."""
    types = {"UINT8": 1, "FP16": 9, "FP32": 10, "BYTES": 12}
    numbers = {
        "py19-multi-go-typed": [[11, 22, 33], [-9, -18, -27]],
        "py19-multi-oneout-go-typed": [[-9, -18, -27]],
        "py19-multi-swapped-go-typed": [[-9, -18, -27], [11, 22, 33]],
    }
    if name in numbers:
        return [(10, [1, 3], [np.array(one, "<f4").tobytes()]) for one in numbers[name]]
    created = []
    for each in case(f"request-{name}")["canonical"]["inputs"]:
        data = bytes.fromhex(each["data"]) if each["datatype"] != "BYTES" else b""
        strings = split(bytes.fromhex(each["data"])) if each["datatype"] == "BYTES" else []
        created.append((types[each["datatype"]], each["shape"], [data, *strings]))
    return created


def split(data: bytes) -> list[bytes]:
    found = []
    while data:
        length = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


@pytest.mark.parametrize("name", [each for each in REQUESTS if "-meta-" in each])
def test_metadata(listeners: Mapping[str, str], name: str) -> None:
    server = server_of(name)
    status, _, body = replayed(listeners[server], recorded(f"request-{name}"))
    assert status == http.HTTPStatus.OK
    response = MetadataResponse.GetRootAs(body)
    expected = metadata(server)
    assert response.Name() == server.encode()
    inputs = [response.Inputs(i).Name().decode() for i in range(response.InputsLength())]
    outputs = [response.Outputs(i).Name().decode() for i in range(response.OutputsLength())]
    assert inputs == [each["name"] for each in expected["inputs"]]
    assert outputs == [each["name"] for each in expected["outputs"]]


@pytest.mark.parametrize("name", BAD)
def test_client_errors_are_reported(listeners: Mapping[str, str], name: str) -> None:
    """Test requests after which the recorded server usually closed the connection."""
    body = recorded(name).partition(b"\r\n\r\n")[2]
    answer = post(listeners["go-raw"], "/", body)
    if "error" in case(name):
        assert is_readable_error((answer.status, answer.headers["content-type"], answer.body)), (
            answer
        )
    else:
        assert answer.status == http.HTTPStatus.OK, answer
