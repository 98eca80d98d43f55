"""Tests clients and servers of KServe's V1 protocol together and with other protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Infergate, started_infergate
from faults.peer import Answer, get, post
from http_stand_in import QuietHandler, StandInServer
from peers.support.process import free_ports
from peers.support.triton import Triton

EXAMPLE = Path(__file__).parents[2] / "config" / "kserve-v1-to-triton.yaml"
CONFIG = """
backends:
  demo: {{protocol: builtin}}
  v1: {{protocol: kserve-v1, endpoints: ["http://{server}"]}}
routes:
  - {{model: double, backend: v1}}
  - {{model: renamed, backend: v1, rewrite: {{model: double}}}}
  - {{model: undeclared, backend: v1}}
  - {{model: "*", backend: demo}}
models:
  double:
    inputs: [{{name: x, datatype: FP32, shape: [-1, 2]}}]
    outputs: [{{name: y, datatype: FP32, shape: [-1, 2]}}]
"""
LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}", v1: kserve-v1}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
EVENT = {"ce-specversion": "1.0", "ce-id": "a", "ce-source": "s", "ce-type": "t"}


class Server:
    """A V1 server that doubles numbers and records its requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    def respond(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "GET":
            responses = {"/": {"status": "alive"}, "/v1/models": {"models": ["double"]}}
            if path in responses:
                return 200, responses[path]
            name = path.removeprefix("/v1/models/")
            if name == "double":
                return 200, {"name": name, "ready": True}
            return 404, {"error": f"Model with name {name} does not exist."}
        if path.endswith(":explain"):
            return 200, {"explanations": body["instances"]}
        rows = body["instances"]
        if not isinstance(rows[0], list):
            return 500, {"error": "KeyError : 0"}
        return 200, {"predictions": [[2 * value for value in row] for row in rows]}


@contextmanager
def started_server() -> Iterator[tuple[Server, str]]:
    server = Server()

    class Handler(QuietHandler):
        def get(self) -> None:
            text = self.body()
            body = json.loads(text) if text else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append((self.path, headers, body))
            self.respond(*server.respond(self.command, self.path, body))

    with StandInServer(Handler) as listening:
        yield server, listening.address


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    with started_server() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: tuple[Server, str]) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(server=server[1]), LISTENERS) as running:
        yield running


@pytest.fixture
def received(server: tuple[Server, str]) -> list[tuple[str, dict[str, str], Any]]:
    server[0].requests.clear()
    return server[0].requests


def call(address: str, path: str, body: Any, headers: Any = None) -> Answer:
    """Send ``body`` as JSON."""
    content_type = {"content-type": "application/json"}
    return post(address, path, json.dumps(body).encode(), {**content_type, **(headers or {})})


def predict(gateway: Infergate, model: str, rows: Any, headers: Any = None) -> Answer:
    path = f"/v1/models/{model}:predict"
    return call(gateway.http, path, {"instances": rows}, headers)


def test_v1_to_embedded_models(gateway: Infergate) -> None:
    ones = [1] * 16
    response = predict(gateway, "simple", [{"INPUT0": ones, "INPUT1": ones}] * 2)
    assert response.status == 200
    assert response.json == {"predictions": [{"OUTPUT0": [2] * 16, "OUTPUT1": [0] * 16}] * 2}
    assert predict(gateway, "simple", [[1]]).status == 400
    assert predict(gateway, "nosuch", [[1]]).status == 404


def test_v1_to_v1(gateway: Infergate, received: list[tuple[str, dict[str, str], Any]]) -> None:
    """Requests pass through, with and without a declared model."""
    for model in ("double", "renamed", "undeclared"):
        response = predict(gateway, model, [[1, 2.5]], EVENT)
        assert (response.status, response.json) == (200, {"predictions": [[2, 5.0]]})
        assert response.headers["ce-source"] == f"io.kserve.inference.{model}"
    assert [path for path, _, _ in received] == [
        "/v1/models/double:predict",
        "/v1/models/double:predict",
        "/v1/models/undeclared:predict",
    ]
    assert not any("ce-id" in headers for _, headers, _ in received)
    response = predict(gateway, "undeclared", [{"b64": "AA=="}])
    assert (response.status, response.json) == (500, {"error": "KeyError : 0"})


def test_explanations(gateway: Infergate) -> None:
    body = {"instances": [[1, 2]]}
    response = call(gateway.http, "/v1/models/renamed:explain", body)
    assert (response.status, response.json) == (200, {"explanations": [[1, 2]]})
    response = call(gateway.http, "/v1/models/simple:explain", body)
    assert response.status == 501
    assert "Could not find explainer_host" in response.error


def test_v2_to_v1(gateway: Infergate, received: list[tuple[str, dict[str, str], Any]]) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4.5]}
    response = call(gateway.http, "/v2/models/double/infer", {"inputs": [tensor]})
    assert response.status == 200
    assert response.json["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 9]}
    ]
    assert received[-1][2] == {"instances": [[1, 2], [3, 4.5]]}
    assert get(gateway.http, "/v2/models/double/ready").json["ready"] is True


def test_the_error_of_an_undeclared_model_shows_the_declaration(gateway: Infergate) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    response = call(gateway.http, "/v2/models/undeclared/infer", {"inputs": [tensor]})
    assert response.status == 501
    assert 'models: {"undeclared": {inputs: [{name: x, datatype: FP32' in response.error


def test_liveness_readiness_and_the_list_of_models(gateway: Infergate) -> None:
    assert get(gateway.http, "/").json == {"status": "alive"}
    for model in ("double", "simple"):
        response = get(gateway.http, f"/v1/models/{model}")
        assert response.status == 200
        assert (response.json["name"], response.json["ready"]) == (model, True)
        assert response.json["model_version_status"][0]["state"] == "AVAILABLE"
    assert get(gateway.http, "/v1/models/nosuch").status == 404
    assert {"double", "simple"} <= set(get(gateway.http, "/v1/models").json["models"])


@pytest.mark.parametrize("protocol", ["tfs-rest", "kserve-v1"])
def test_readiness_has_the_fields_of_both_protocols(protocol: str) -> None:
    config = "backends: {d: {protocol: builtin}}\nroutes: [{model: simple, backend: d}]\n"
    with started_infergate(config, LISTENERS.replace("kserve-v1", protocol)) as running:
        response = get(running.http, "/v1/models/simple")
        document = response.json
        assert (response.status, document["name"], document["ready"]) == (200, "simple", True)
        version = document["model_version_status"][0]
        assert (version["state"], version["status"]["error_code"]) == ("AVAILABLE", "OK")
        list_status = get(running.http, "/v1/models").status
        assert list_status == (200 if protocol == "kserve-v1" else 400)
        assert get(running.http, "/").json == {"status": "alive"}


@pytest.mark.parametrize("name", ["ce-id", "ce-source", "ce-anything"])
def test_events_with_long_headers_are_rejected(gateway: Infergate, name: str) -> None:
    assert predict(gateway, "simple", [], {**EVENT, name: "x" * 100_000}).status == 431


def test_large_rows_are_served(gateway: Infergate) -> None:
    rows = [[float(i + j) for j in range(2)] for i in range(60_000)]
    assert predict(gateway, "undeclared", rows).json["predictions"][-1] == [119998.0, 120000.0]
    numbers = [value for row in rows for value in row]
    assert predict(gateway, "identity", numbers).json["predictions"] == numbers
    explanation = call(gateway.http, "/v1/models/double:explain", {"instances": rows})
    assert explanation.json["explanations"] == rows
    tensor = {"name": "x", "datatype": "FP32", "shape": [60_000, 2], "data": rows}
    response = call(gateway.http, "/v2/models/double/infer", {"inputs": [tensor]})
    assert response.json["outputs"][0]["data"][-1] == 120000.0


@pytest.mark.triton
def test_the_example_with_triton(triton: Triton) -> None:
    """Test config/kserve-v1-to-triton.yaml with the names of the test models."""
    config = EXAMPLE.read_text()
    (port,) = free_ports(1)
    with started_server() as (_, explainer):
        for name, replacement in (
            ("${TRITON_URL:-grpc://127.0.0.1:8011}", f"grpc://{triton.grpc}"),
            ("${EXPLAINER_URL:-http://127.0.0.1:8090}", f"http://{explainer}"),
            ("${INFERGATE_HOST:-127.0.0.1}:${INFERGATE_KSERVE_PORT:-8080}", f"127.0.0.1:{port}"),
            ("iris_onnx", "id_FP32"),
            ("float_input", "INPUT0"),
            ("probabilities", "OUTPUT0"),
        ):
            assert name in config
            config = config.replace(name, replacement)
        before, _, rest = config.partition("\nbackends:")
        listeners = before.replace(
            "address: ${INFERGATE_HOST:-127.0.0.1}:${INFERGATE_ADMIN_PORT:-8002}",
            'address: "127.0.0.1:{0}"',
        )
        listeners = listeners.replace("http: null", 'http: {{address: "127.0.0.1:{2}"}}')
        listeners = listeners.replace("grpc: null", 'grpc: {{address: "127.0.0.1:{1}"}}')
        with started_infergate(f"backends:{rest}", listeners + "\n"):
            address = f"127.0.0.1:{port}"
            body = {"instances": [5.1, 3.5]}
            path = "/v1/models/iris:predict"
            assert call(address, path, body).json == {"predictions": body["instances"]}
            path = "/v1/models/iris-explainer:explain"
            assert call(address, path, body).json == {"explanations": body["instances"]}
            assert get(address, "/v1/models/iris").json["ready"] is True
            assert get(address, "/v2/health/ready").status == 200
            assert get(address, "/v3").json == {"detail": "Not Found"}
