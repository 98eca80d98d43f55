"""Tests of KServe's V1 client and the CloudEvents SDK through infergate to KServe's server and
other servers, and of V2 clients and a probe with KServe's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.clients import client
from e2e.probing import models_of, probe, protocols_of
from e2e.running import Infergate, started_infergate
from infergate.config import load
from peers.support.kserve import KServe, kserve_v1_report, started_kserve_v1
from peers.support.mlserver import MLServer
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}", v1: kserve-v1}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
CONFIG = """
backends:
  demo: {{protocol: builtin}}
  server: {{protocol: kserve-v1, endpoints: ["http://{server}"]}}
routes:
  - {{model: double, backend: server}}
  - {{model: undeclared, backend: server, rewrite: {{model: double}}}}
  - {{model: swap, backend: server}}
  - {{model: embedded, backend: demo, rewrite: {{model: identity}}}}
models:
  double:
    inputs: [{{name: x, datatype: FP32, shape: [-1, 2]}}]
    outputs: [{{name: y, datatype: FP32, shape: [-1, 2]}}]
  embedded:
    inputs: [{{name: INPUT0, datatype: FP32, shape: [-1, 2]}}]
    outputs: [{{name: OUTPUT0, datatype: FP32, shape: [-1, 2]}}]
  swap:
    inputs: [{{name: a, datatype: INT64, shape: [-1]}}, {{name: b, datatype: BYTES, shape: [-1]}}]
    outputs: [{{name: c, datatype: BYTES, shape: [-1]}}, {{name: d, datatype: INT64, shape: [-1]}}]
"""
ROWS = [[1.0, 2.5], [3.0, 4.0]]


@pytest.fixture(scope="module")
def server() -> Iterator[KServe]:
    with started_kserve_v1() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: KServe) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(server=server.http), LISTENERS) as running:
        yield running


def expected(model: str, rows: Any, **others: Any) -> dict[str, Any]:
    event = ["io.kserve.inference.response", f"io.kserve.inference.{model}", {"predictions": rows}]
    return {
        "live": True,
        "ready": True,
        "unknown ready": [404, {"error": "Model with name nosuch does not exist."}],
        "infer": {"predictions": rows},
        "binary event": event,
        "structured event": event,
        **others,
    }


def check_kserves_outcomes(outcomes: dict[str, Any], model: str) -> None:
    ragged = outcomes.pop("infer ragged")
    assert ragged[0] == 500
    assert "ValueError" in ragged[1]["error"]
    assert outcomes == expected(
        model,
        [[2.0, 5.0], [6.0, 8.0]],
        explain="no error",
        **{"infer inputs": {"predictions": [[2, 4]]}},
    )


def test_kserves_client_to_kserves_server_without_the_gateway(server: KServe) -> None:
    check_kserves_outcomes(kserve_v1_report(server.http, "double", ROWS), "double")


@pytest.mark.parametrize("model", ["double", "undeclared"])
def test_kserves_client_to_kserves_server(gateway: Infergate, model: str) -> None:
    check_kserves_outcomes(kserve_v1_report(gateway.http, model, ROWS), model)


def test_kserves_client_to_embedded_models(gateway: Infergate) -> None:
    outcomes = kserve_v1_report(gateway.http, "embedded", ROWS)
    for name, status, text in (
        ("infer ragged", 400, "'INPUT0'"),
        ("explain", 501, "Could not find explainer_host."),
    ):
        code, body = outcomes.pop(name)
        assert code == status
        assert text in body["error"]
    assert outcomes == expected("embedded", ROWS, **{"infer inputs": {"predictions": [[1.0, 2.0]]}})


def test_v2_clients_to_kserves_server(gateway: Infergate) -> None:
    array = np.array(ROWS, np.float32)
    for form in ("http", "grpc"):
        with client(form, gateway.http, gateway.grpc) as triton_client:
            tensor = triton_client.input("x", array, "FP32")
            doubled = triton_client.infer("double", [tensor]).as_numpy("y")
            assert doubled.tolist() == (array * 2).tolist()
            assert triton_client.is_model_ready("double")
            inputs = [
                triton_client.input("a", np.array([1, 2]), "INT64"),
                triton_client.input("b", np.array([b"x", "é".encode()], np.object_), "BYTES"),
            ]
            swapped = triton_client.infer("swap", inputs)
            assert swapped.as_numpy("d").tolist() == [1, 2]
            assert swapped.as_numpy("c").tolist() == [b"x", "é".encode()]


SCORES = """
models:
  scores:
    inputs: [{name: INPUT0, datatype: FP32, shape: [-1]}]
    outputs: [{name: OUTPUT0, datatype: FP32, shape: [-1]}]
"""


def check_scores(address: str, model: str, nested: Any, declared: str = "") -> None:
    """Check KServe's client with ``model``, which returns its input, on a V2 gRPC server.
    ``nested`` is the outcome of rows with more dimensions than the model has."""
    config = f"""
backends: {{server: {{protocol: v2-grpc, endpoints: ["grpc://{address}"]}}}}
routes: [{{model: scores, backend: server, rewrite: {{model: {model}}}}}]
{declared}
"""
    rows = [0.5, -1.25]
    with started_infergate(config, LISTENERS) as running:
        outcomes = kserve_v1_report(running.http, "scores", rows)
    assert outcomes.pop("infer ragged")[0] == 400
    assert outcomes.pop("explain")[0] == 501
    assert outcomes == expected("scores", rows, **{"infer inputs": nested})


def test_kserves_client_to_triton(triton: Triton) -> None:
    check_scores(triton.grpc, "id_FP32", "failed: HTTPStatusError")


def test_kserves_client_to_mlserver(mlserver: MLServer) -> None:
    # MLServer does not check shapes.
    check_scores(mlserver.grpc, "identity", {"predictions": [[1.0, 2.0]]}, SCORES)


def test_a_probe_lists_models_and_writes_placeholders_for_their_tensors(
    server: KServe, tmp_path: Path
) -> None:
    file = tmp_path / "routes.yaml"
    document = probe(server.http, "--write", str(file))
    assert protocols_of(document) == {server.http: {"v2-rest", "kserve-v1"}}
    models = models_of(document)
    assert models.keys() >= {"double", "swap"}
    assert models["double"]["curl"] is None
    assert "#   double: {inputs: [" in file.read_text()
    http = load(file, {}).listeners.http
    assert http is not None
    assert http.v1 == "kserve-v1"
