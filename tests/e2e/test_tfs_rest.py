"""Tests TensorFlow Serving's REST API between clients and a scripted server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from e2e.probing import models_of, probe, run_requests
from e2e.running import Infergate, started_infergate
from faults.peer import get, post
from http_stand_in import QuietHandler, StandInServer

CONFIG = """
backends:
  demo: {{protocol: builtin}}
  serving: {{protocol: tfs-rest, endpoints: ["http://{server}"]}}
routes:
  - {{model: digits, backend: demo}}
  - {{model: images, backend: demo, rewrite: {{model: identity}}}}
  - {{model: other, backend: serving, rewrite: {{model: half_plus_two, version: "3"}}}}
  - {{model: renamed, backend: serving, rewrite: {{model: half_plus_two, outputs: {{z: y}}}}}}
  - {{model: half_plus_two, backend: serving}}
models:
  images:
    inputs: [{{name: INPUT0, datatype: FP32, shape: [-1, 224, 224, 3]}}]
    outputs: [{{name: OUTPUT0, datatype: FP32, shape: [-1, 224, 224, 3]}}]
tensorflow_serving:
  models:
    half_plus_two: {{labels: {{stable: "3"}}, signatures: {{again: other}}}}
"""
TENSOR = {"tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}}
SIGNATURE = {
    "inputs": {"x": {"dtype": "DT_FLOAT", "name": "x:0", **TENSOR}},
    "outputs": {"y": {"dtype": "DT_FLOAT", "name": "y:0", **TENSOR}},
    "method_name": "tensorflow/serving/predict",
    "defaults": {},
}
PATH = "/v1/models/half_plus_two"


class Handler(QuietHandler):
    """Returns ``x`` / 2 + 2 as ``y``, in the layout of TensorFlow Serving."""

    server: Server

    def get(self) -> None:
        name = self.path.split("/")[3] if self.path.startswith("/v1/models/") else ""
        if name == "infergate-probe":
            self.respond(404, {"error": f"Could not find any versions of model {name}"})
        elif self.path.endswith("/metadata"):
            signatures = {"serving_default": SIGNATURE, "sum": SIGNATURE}
            spec = {"name": name, "signature_name": "", "version": "3"}
            fields = {"signature_def": {"signature_def": signatures}}
            self.respond(200, {"model_spec": spec, "metadata": fields})
        elif name:
            status = {"error_code": "OK", "error_message": ""}
            failed = {"error_code": "NOT_FOUND", "error_message": "no such file"}
            self.respond(200, {"model_version_status": [
                {"version": "4", "state": "END", "status": failed},
                {"version": "3", "state": "AVAILABLE", "status": status},
            ]})  # fmt: skip
        else:
            self.respond(400, {"error": "Missing model name in request."})

    def post(self) -> None:
        body = json.loads(self.body())
        self.server.requests.append((self.path, body))
        if self.server.error:
            self.respond(*self.server.error)
        elif self.path.endswith(":classify"):
            self.respond(200, {"results": [[["cat", 0.5]]]})
        elif "instances" in body:
            self.respond(200, {"predictions": [x / 2 + 2 for x in body["instances"]]})
        else:
            self.respond(200, {"outputs": [x / 2 + 2 for x in body["inputs"]["x"]]})


class Server(StandInServer):
    def __init__(self) -> None:
        super().__init__(Handler)
        self.requests: list[tuple[str, Any]] = []
        self.error: tuple[int, Any] | None = None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(server=server.address)) as running:
        yield running


@pytest.fixture
def received(server: Server) -> list[tuple[str, Any]]:
    server.error = None
    server.requests.clear()
    return server.requests


def send(running: Infergate, path: str, document: Any, **headers: str) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    response = post(running.http, path, body, headers)
    return response.status, response.json


def test_requests_to_the_same_api_are_unchanged(gateway: Infergate, received: Any) -> None:
    for body, expected in (
        ({"instances": [1.0, 2.0]}, {"predictions": [2.5, 3.0]}),
        ({"inputs": {"x": [4]}}, {"outputs": [4.0]}),
        ({"signature_name": "sum", "inputs": [0]}, None),
    ):
        status, document = send(gateway, f"{PATH}/labels/canary:predict", body)
        assert received.pop() == (f"{PATH}/labels/canary:predict", body)  # unchanged
        if expected:
            assert (status, document) == (200, expected)


def test_names_are_rewritten(gateway: Infergate, received: Any) -> None:
    assert send(gateway, "/v1/models/other:predict", {"instances": [1]})[0] == 200
    assert received.pop()[0] == f"{PATH}/versions/3:predict"
    assert send(gateway, f"{PATH}/labels/stable:predict", {"instances": [1]})[0] == 200
    assert received.pop()[0] == f"{PATH}/versions/3:predict"
    status, document = send(gateway, "/v1/models/renamed:predict", {"instances": [1]})
    assert (status, document) == (200, {"predictions": [2.5]})
    assert received.pop() == (f"{PATH}:predict", {"inputs": {"x": [1.0]}})  # translated
    body = {"signature_name": "again", "instances": [1]}
    assert send(gateway, f"{PATH}:predict", body) == (200, {"predictions": [2.5]})
    assert received.pop() == (f"{PATH}/versions/3:predict", {"inputs": {"x": [1.0]}})


def test_invalid_requests_do_not_reach_the_server(gateway: Infergate, received: Any) -> None:
    for body, text in (
        ({"instances": [[1], [2, 3]]}, "tensor 'x'[1]"),
        ({"instances": ["a"]}, "tensor 'x': element 0 is a string"),
        ({"signature_name": "nope", "instances": [1]}, 'Serving signature name: "nope" not found'),
        (b'{"instances": ' + b"[" * 100_000, "nested over 100 levels"),
    ):
        status, document = send(gateway, f"{PATH}:predict", body)
        assert status == 400
        assert text in document["error"]
    assert received == []


def test_compressed_requests_are_decompressed(gateway: Infergate, received: Any) -> None:
    body = gzip.compress(json.dumps({"instances": [1]}).encode())
    response = send(gateway, f"{PATH}:predict", body, **{"Content-Encoding": "gzip"})
    assert response == (200, {"predictions": [2.5]})
    assert received.pop()[1] == {"instances": [1]}


def test_classify_calls_are_forwarded(gateway: Infergate, received: Any) -> None:
    body = {"signature_name": "c", "examples": [{"a": 1}]}
    for model, path in (
        ("half_plus_two", f"{PATH}:classify"),
        ("other", f"{PATH}/versions/3:classify"),
        ("renamed", f"{PATH}:classify"),  # translated
    ):
        status, document = send(gateway, f"/v1/models/{model}:classify", body)
        assert (status, document) == (200, {"results": [[["cat", 0.5]]]})
        assert received.pop() == (path, body)
    status, document = send(gateway, "/v1/models/digits:regress", body)
    assert status == 501
    assert "regress needs a backend that speaks" in document["error"]


def test_long_classify_calls_are_forwarded(gateway: Infergate, received: Any) -> None:
    examples = [{"a": "x" * 1000}] * 400
    body = {"examples": examples}
    for model in ("half_plus_two", "renamed"):
        response = send(gateway, f"/v1/models/{model}:classify", body)
        assert response == (200, {"results": [[["cat", 0.5]]]})
        assert received.pop() == (f"{PATH}:classify", body)
    literals = {"examples": [{"a": float("nan")}, *examples[:100]]}
    assert send(gateway, f"{PATH}:classify", literals)[0] == 200
    assert json.dumps(received.pop()[1]) == json.dumps(literals)


def test_requested_outputs_over_v2(gateway: Infergate, received: Any) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    body = {"inputs": [tensor], "outputs": [{"name": "z"}]}
    status, document = send(gateway, "/v2/models/renamed/infer", body)
    assert (status, [output["name"] for output in document["outputs"]]) == (200, ["z"])
    received.clear()
    status, document = send(gateway, "/v2/models/half_plus_two/infer", body)
    assert status == 400
    assert "output tensor alias not found in signature: z" in document["error"]
    assert received == []


def test_server_errors_are_returned(gateway: Infergate, server: Server, received: Any) -> None:
    for status, expected in ((400, 400), (404, 404), (503, 503), (500, 500)):
        server.error = status, {"error": "why not"}
        response = send(gateway, f"{PATH}:predict", {"instances": [1]})
        text = "Servable not found for request: Latest(half_plus_two)"
        assert response == (expected, {"error": text if status == 404 else "why not"})
    assert received


def test_metadata_and_status(gateway: Infergate, received: Any) -> None:
    del received
    response = get(gateway.http, "/v1/models/other/metadata")
    assert response.status == 200
    assert response.json["model_spec"]["name"] == "other"
    signatures = response.json["metadata"]["signature_def"]["signature_def"]
    assert signatures == {"serving_default": SIGNATURE, "sum": SIGNATURE}
    response = get(gateway.http, "/v1/models/half_plus_two")
    assert (response.status, response.json["ready"]) == (200, True)
    assert [entry["status"]["error_code"] for entry in response.json["model_version_status"]] == [
        "NOT_FOUND", "OK"
    ]  # fmt: skip
    inputs = get(gateway.http, "/v2/models/half_plus_two").json["inputs"]
    assert [tensor["datatype"] for tensor in inputs] == ["FP32"]
    assert get(gateway.http, "/v2/models/half_plus_two/ready").status == 200
    assert get(gateway.http, "/v1/models").json == {"error": "Missing model name in request."}


def test_large_images_are_served_and_checked(gateway: Infergate) -> None:
    image = np.random.default_rng(0).random((2, 224, 224, 3), np.float32)
    status, document = send(gateway, "/v1/models/images:predict", {"instances": image.tolist()})
    assert status == 200
    assert np.array_equal(np.array(document["predictions"], np.float32), image)
    ragged = image.tolist()
    ragged[1][200][3] = ragged[1][200][3][:2]
    status, document = send(gateway, "/v1/models/images:predict", {"instances": ragged})
    assert status == 400
    assert "tensor 'INPUT0'[1][200][3]" in document["error"]


def test_a_probe_describes_the_named_models_and_its_requests_run(server: Server) -> None:
    address = server.address
    document = probe(address, "--model", "half_plus_two")
    [probed_server] = document["servers"]
    assert (probed_server["server"], probed_server["lists_models"]) == ("TensorFlow Serving", False)
    model = models_of(document)["half_plus_two"]
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    for response in run_requests(model):
        assert response["outputs"] == [2.25]
