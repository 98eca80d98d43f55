"""Tests GraphPipe over all transports, with infergate as the server and as the client."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import Client, get, post
from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.graphpipe.backend import METADATA_REQUEST
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from peers.support.process import free_ports

CODEC = PLUGIN.create({})
ADD = ModelMetadata(
    "simple",
    inputs=(
        TensorMetadata("INPUT0", "INT32", (-1, 16)),
        TensorMetadata("INPUT1", "INT32", (-1, 16)),
    ),
    outputs=(
        TensorMetadata("OUTPUT0", "INT32", (-1, 16)),
        TensorMetadata("OUTPUT1", "INT32", (-1, 16)),
    ),
)
TEN = tensor_from_array("INPUT0", Datatype.INT32, np.full((1, 16), 10, "<i4"))
THREE = tensor_from_array("INPUT1", Datatype.INT32, np.full((1, 16), 3, "<i4"))
ROUTES = """
backends:
  demo: {protocol: builtin}
routes:
  - {model: "*", backend: demo}
"""


class Server:
    """Infergate with a listener of each kind for the model ``simple``."""

    def __init__(self, gateway: Infergate, ports: tuple[int, int], folder: Path) -> None:
        self.gateway = gateway
        self.http, raw = (f"127.0.0.1:{port}" for port in ports)
        http_socket, raw_socket = f"{folder}/gp.sock", f"{folder}/raw.sock"
        self.endpoints = {
            "http": f"http://{self.http}/any/path",
            "http+unix": f"http+unix:{http_socket}",
            "tcp": f"tcp://{raw}",
            "unix": f"unix:{raw_socket}",
        }
        self._addresses = {
            "http": self.http,
            "http+unix": f"unix:{http_socket}",
            "tcp": raw,
            "unix": f"unix:{raw_socket}",
        }

    def connected(self, kind: str) -> Client:
        return Client(self._addresses[kind])

    def send_request(self, kind: str, body: bytes) -> HttpResponse:
        with self.connected(kind) as client:
            if kind in ("tcp", "unix"):
                return HttpResponse(200, {}, [exchange(client, body)])
            client.post("/whatever", body)
            response = client.answer()
            return HttpResponse(response.status, response.headers, [response.body])


def exchange(client: Client, body: bytes) -> bytes:
    client.send(struct.pack("<I", len(body)) + body)
    return frame(client)


def frame(client: Client) -> bytes:
    return client.exactly(*struct.unpack("<I", client.exactly(4)))


KINDS = ("http", "http+unix", "tcp", "unix")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gp")
    http_port, raw_port = free_ports(2)
    listeners = f"""{LISTENERS}  graphpipe:
    - {{{{address: 127.0.0.1:{http_port}, model: simple, accept_both_lengths: true}}}}
    - {{{{address: "unix:{folder}/gp.sock", model: simple}}}}
    - {{{{address: "tcp://127.0.0.1:{raw_port}", model: simple, framing: size-prefixed}}}}
    - {{{{address: "unix:{folder}/raw.sock", model: simple, framing: size-prefixed}}}}
"""
    with started_infergate(ROUTES, listeners) as gateway:
        yield Server(gateway, (http_port, raw_port), folder)
    assert not (folder / "gp.sock").exists()
    assert not (folder / "raw.sock").exists()


def to_body(operation: messages.Operation) -> bytes:
    return bytes(join_parts(CODEC.build_request(operation, Profile("any"), ADD).body))


def read(response: HttpResponse, operation: messages.Operation) -> messages.Response:
    return CODEC.parse_response(response, operation, DEFAULT_LIMITS, ADD)


def outputs(response: messages.Response) -> dict[str, Any]:
    assert isinstance(response, messages.InferResponse)
    return {tensor.name: tensor.numpy().ravel()[0] for tensor in response.outputs}


# ---- clients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_inferences_over_each_transport(server: Server, kind: str) -> None:
    request = InferRequest("simple", inputs=(TEN, THREE))
    result = read(server.send_request(kind, to_body(request)), request)
    assert outputs(result) == {"OUTPUT0": 13, "OUTPUT1": 7}


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_over_each_transport(server: Server, kind: str) -> None:
    request = messages.ModelMetadataRequest("simple")
    response = read(server.send_request(kind, METADATA_REQUEST), request)
    assert isinstance(response, ModelMetadata)
    assert (response.inputs, response.outputs) == (ADD.inputs, ADD.outputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"nonsense", to_body(InferRequest("simple", inputs=(TEN,)))])
def test_invalid_requests_are_client_errors(server: Server, kind: str, body: bytes) -> None:
    response = server.send_request(kind, body)
    assert response.status == (200 if kind in ("tcp", "unix") else 400)
    with pytest.raises(GatewayError) as caught:
        read(response, InferRequest("simple"))
    assert caught.value.kind is Kind.BAD_REQUEST
    assert caught.value.public


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_many_requests_on_one_connection(server: Server, kind: str) -> None:
    body = to_body(InferRequest("simple", inputs=(TEN, THREE)))
    with server.connected(kind) as client:
        first = exchange(client, body)
        exchange(client, b"")
        client.send((struct.pack("<I", len(body)) + body) * 20)
        for _ in range(20):
            assert frame(client) == first


def test_get_requests_on_own_and_shared_ports(server: Server) -> None:
    assert get(server.http, "/anything").json["Name"] == "simple"
    assert get(server.gateway.http, "/graphpipe/simple").json["Name"] == "simple"


@pytest.mark.parametrize("lengths", [b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_clients_that_wait_for_100_continue_are_served(server: Server, lengths: bytes) -> None:
    body = to_body(InferRequest("simple", inputs=(TEN, THREE)))
    line = lengths % len(body) if b"%d" in lengths else lengths
    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if b"chunked" in lengths else body
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n" + line + b"\r\n"
    assert status_after_100_continue(server, head, content) == 200


def test_the_tensorflow_operation_is_served_on_own_ports_only(server: Server) -> None:
    """libcurl sends Content-Length and Transfer-Encoding, which a shared port rejects."""
    body = to_body(InferRequest("simple", inputs=(TEN, THREE)))
    head = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Length: %d\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Expect: 100-continue\r\n\r\n" % len(body)
    )
    assert (
        status_after_100_continue(server, head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) == 200
    )
    with Client(server.gateway.http) as client:
        client.send(head)
        assert client.answer().status == 400


def status_after_100_continue(server: Server, head: bytes, body: bytes) -> int:
    """Send ``body`` after 100 Continue, and return the status of the response."""
    with Client(server.http) as client:
        client.send(head)
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        return client.answer().status


# ---- servers -----------------------------------------------------------------------------------


def infer(address: str, model: str, inputs: list[dict[str, Any]]) -> tuple[int, Any]:
    """Return the status and the body of an inference over V2 REST."""
    response = post(address, f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())
    return response.status, response.json


def to_json(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
        "data": tensor.numpy().ravel().tolist(),
    }


@pytest.fixture(scope="module")
def front(server: Server) -> Iterator[Infergate]:
    """Run a second gateway with one backend and one route for each kind of listener."""
    config = "backends:\n"
    for kind, endpoint in server.endpoints.items():
        config += f'  {kind}: {{protocol: graphpipe, endpoints: ["{endpoint}"]}}\n'
    config += "routes:\n"
    for kind in server.endpoints:
        config += (
            f"  - {{model: {kind}, backend: {kind}, rewrite: {{outputs: {{sum: OUTPUT0}}}}}}\n"
        )
    with started_infergate(config) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_a_graphpipe_backend_serves_inferences_errors_and_readiness(
    front: Infergate, kind: str
) -> None:
    for _ in range(3):
        status, response = infer(front.http, kind, [to_json(TEN), to_json(THREE)])
        assert status == 200
        values = {each["name"]: each["data"][0] for each in response["outputs"]}
        assert values == {"sum": 13, "OUTPUT1": 7}
    status, response = infer(front.http, kind, [to_json(TEN)])
    assert (status, bool(response["error"])) == (400, True)
    assert get(front.http, f"/v2/models/{kind}/ready").status == 200


class InferenceOnlyServer(BaseHTTPRequestHandler):
    """A server like graphpipe-py's examples: it speaks HTTP/1.0, serves one connection at a time,
    ends each response by closing the connection, and supports neither GET nor metadata."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        parsing = PLUGIN.create({"model": "inference_only"})
        wire = HttpRequest("POST", "/", body=[body])
        if parsing.summarize(wire).operation is not InferRequest:
            return
        partial: Any = parsing.parse_request(wire, DEFAULT_LIMITS)
        parsed = partial.complete(DECLARED)
        request = parsed.operation
        assert isinstance(request, InferRequest)
        (tensor,) = request.inputs
        response = messages.InferResponse(
            "inference_only", outputs=(Tensor("out", tensor.datatype, tensor.shape, tensor.data),)
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(join_parts(parsing.build_response(response, parsed).body))

    def log_message(self, *_: object) -> None:
        pass


DECLARED = ModelMetadata(
    "inference_only",
    inputs=(TensorMetadata("in", "UINT8", (-1,)),),
    outputs=(TensorMetadata("out", "UINT8", (-1,)),),
)


@pytest.fixture
def inference_only() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), InferenceOnlyServer) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_a_backend_without_metadata_needs_a_declared_model(inference_only: str) -> None:
    config = f"""
backends:
  gp: {{protocol: graphpipe, endpoints: ["{inference_only}"]}}
routes:
  - {{model: inference_only, backend: gp, cast: {{BOOL: UINT8}}}}
  - {{model: undeclared, backend: gp}}
models:
  inference_only:
    inputs: [{{name: in, datatype: UINT8, shape: [-1]}}]
    outputs: [{{name: out, datatype: UINT8, shape: [-1]}}]
"""
    tensor = tensor_from_array("in", Datatype.UINT8, np.arange(5, dtype="u1"))
    flags = tensor_from_array("in", Datatype.BOOL, np.array([True, False]))
    with started_infergate(config) as gateway:
        status, response = infer(gateway.http, "inference_only", [to_json(tensor)])
        assert (status, response["outputs"][0]["data"]) == (200, [0, 1, 2, 3, 4])
        status, response = infer(gateway.http, "inference_only", [to_json(flags)])
        assert (status, response["outputs"][0]["data"]) == (200, [1, 0])
        status, response = infer(gateway.http, "undeclared", [to_json(tensor)])
        assert status == 501
        assert (
            "does not provide the metadata of model 'undeclared'; declare it" in response["error"]
        )
        assert (
            get(gateway.admin, "/readyz").status == 200
        )  # the 501 for a GET shows that the server is alive
