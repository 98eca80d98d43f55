"""Tests a real tritonclient with MLServer and KServe behind infergate, over both V2 protocols.

MLServer has no binary REST. KServe rejects versions over REST, and its gRPC responses have typed
contents. The gateway hides these differences from tritonclient."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, Client
from e2e.probing import probe, protocols_of, run_requests
from e2e.running import Infergate, started_infergate
from infergate.config import load
from peers.support.kserve import KServe
from peers.support.mlserver import MLServer

CONFIG = """
backends:
  ml-rest: {{protocol: v2-rest, endpoints: ["http://{ml.http}"]}}
  ml-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{ml.grpc}"]}}
  k-rest: {{protocol: v2-rest, endpoints: ["http://{k.http}"]}}
  k-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{k.grpc}"]}}
routes:
  - model: '/mlserver\\.rest\\.(.+)/'
    backend: ml-rest
    rewrite: &one {{model: '\\1'}}
    labels: &labels {{OUTPUT0: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]}}
  - {{model: '/mlserver\\.grpc\\.(.+)/', backend: ml-grpc, rewrite: *one, labels: *labels}}
  - {{model: '/kserve\\.rest\\.(.+)/', backend: k-rest, rewrite: *one, labels: *labels}}
  - {{model: '/kserve\\.grpc\\.(.+)/', backend: k-grpc, rewrite: *one, labels: *labels}}
"""
SERVERS = ("mlserver.rest", "mlserver.grpc", "kserve.rest", "kserve.grpc")


@pytest.fixture(scope="module")
def gateway(mlserver: MLServer, kserve: KServe) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(ml=mlserver, k=kserve)) as running:
        yield running


def binary_options(triton_client: Client) -> tuple[bool, ...]:
    return (True, False) if triton_client.http else (True,)


@pytest.mark.parametrize("server", SERVERS)
def test_sum_and_difference(triton_client: Client, server: str) -> None:
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    for binary in binary_options(triton_client):
        inputs = [
            triton_client.input("INPUT0", a, "INT32", binary=binary),
            triton_client.input("INPUT1", b, "INT32", binary=binary),
        ]
        result = triton_client.infer(f"{server}.simple", inputs, request_id="mine")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
        response = result.get_response()
        assert (response["id"] if triton_client.http else response.id) == "mine"
        assert (
            response["model_name"] if triton_client.http else response.model_name
        ) == f"{server}.simple"


# Neither server supports BF16.
UNSUPPORTED_DATATYPES = {
    "mlserver.rest": {"BF16"},
    "mlserver.grpc": {"BF16"},
    "kserve.rest": {"BF16"},
    "kserve.grpc": {"BF16"},
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("datatype", ARRAYS)
def test_each_datatype(triton_client: Client, server: str, datatype: str) -> None:
    array = ARRAYS[datatype]
    tensor = triton_client.input("INPUT0", array, datatype)
    if datatype in UNSUPPORTED_DATATYPES[server]:
        with pytest.raises(InferenceServerException):
            triton_client.infer(f"{server}.identity", [tensor])
        return
    result = triton_client.infer(f"{server}.identity", [tensor]).as_numpy("OUTPUT0")
    assert result.dtype == array.dtype
    assert result.tolist() == array.tolist()


@pytest.mark.parametrize("server", SERVERS)
def test_classes_are_computed_by_the_gateway(triton_client: Client, server: str) -> None:
    """Neither server supports classes."""
    a = np.arange(32, dtype=np.int32).reshape(2, 16) * 7 % 31
    for binary in binary_options(triton_client):
        inputs = [triton_client.input(f"INPUT{i}", a, "INT32", binary=binary) for i in range(2)]
        outputs = [
            triton_client.output("OUTPUT0", binary=binary, classes=2),
            triton_client.output("OUTPUT1", binary=binary),
        ]
        result = triton_client.infer(f"{server}.simple", inputs, outputs=outputs)
        labels = [
            [x if isinstance(x, str) else x.decode() for x in row]
            for row in result.as_numpy("OUTPUT0")
        ]
        best = np.argsort(-a, axis=1)[:, :2]
        assert labels == [
            [f"{2 * row[i]}:{i}:{'abcdefghijklmnop'[i]}" for i in positions]
            for row, positions in zip(a, best, strict=True)
        ]
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - a)


@pytest.mark.parametrize("server", SERVERS)
def test_metadata_readiness_and_versions(triton_client: Client, server: str) -> None:
    metadata = triton_client.get_model_metadata(f"{server}.simple", **triton_client.as_json)
    assert metadata["name"] == f"{server}.simple"
    assert {t["name"] for t in metadata["inputs"]} == {"INPUT0", "INPUT1"}
    assert triton_client.is_model_ready(f"{server}.simple")
    if triton_client.http:
        assert not triton_client.is_model_ready(f"{server}.no-such-model")
    else:  # KServe returns NOT_FOUND and MLServer INTERNAL, but Triton returns false
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND|ModelNotFound"):
            triton_client.is_model_ready(f"{server}.no-such-model")
    tensor = triton_client.input("INPUT0", np.ones(2, np.float32), "FP32")
    if server.startswith("kserve"):  # KServe has no versions and ignores a requested version
        triton_client.infer(f"{server}.identity", [tensor], model_version="1")


@pytest.mark.parametrize("server", SERVERS)
def test_unknown_and_failing_models_are_errors(triton_client: Client, server: str) -> None:
    tensor = triton_client.input("INPUT0", np.ones(2, np.float32), "FP32")
    with pytest.raises(InferenceServerException) as unknown:
        triton_client.infer(f"{server}.no-such-model", [tensor])
    assert unknown.value.status() in {"404", "StatusCode.NOT_FOUND"}
    with pytest.raises(InferenceServerException) as failed:
        triton_client.infer(f"{server}.fail", [tensor])
    assert failed.value.status() in {"500", "StatusCode.INTERNAL"}
    assert "Traceback" not in str(failed.value)


def test_the_gateway_is_ready_if_all_servers_are(triton_client: Client) -> None:
    assert triton_client.is_server_ready()


BASE64 = {"content_type": "base64"}


@pytest.mark.parametrize(
    ("server", "datatype", "data", "expected"),
    [
        *((each, "FP32", [1.5, None, "Infinity", "-Infinity"], None) for each in SERVERS),
        *((each, "BYTES", "plain", ["plain"]) for each in SERVERS),
        # KServe cannot return bytes that are not text. Over REST, MLServer returns the base64 text
        # that it received, without its marker.
        ("mlserver.grpc", "BYTES", ["/w==", "cGxhaW4="], ["/w==", "cGxhaW4="]),
        ("kserve.grpc", "BYTES", ["cGxhaW4="], ["plain"]),
        ("kserve.rest", "BYTES", ["cGxhaW4="], ["plain"]),
    ],
)
def test_null_infinity_and_base64_of_different_servers(
    gateway: Infergate, server: str, datatype: str, data: Any, expected: list[str] | None
) -> None:
    parameters = BASE64 if isinstance(data, list) and datatype == "BYTES" else {}
    shape = [len(data) if isinstance(data, list) else 1]
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}
    request = urllib.request.Request(
        f"http://{gateway.http}/v2/models/{server}.identity/infer",
        json.dumps({"inputs": [tensor | {"parameters": parameters}]}).encode(),
    )
    with urllib.request.urlopen(request) as response:
        (output,) = json.load(response)["outputs"]
    if expected is None:
        nan, *others = (float("nan" if x is None else x) for x in output["data"][1:])
        assert math.isnan(nan)
        assert others == [math.inf, -math.inf]
    else:
        assert output["data"] == expected
        assert ((output.get("parameters") or {}).get("content_type") == "base64") is (
            "/w==" in expected
        )


def test_a_probe_tells_the_servers_apart_and_its_requests_run(
    mlserver: MLServer, kserve: KServe, tmp_path: Path
) -> None:
    file = tmp_path / "routes.yaml"
    addresses = (mlserver.http, mlserver.grpc, kserve.http, kserve.grpc)
    document = probe(*addresses, "--write", str(file))
    assert protocols_of(document) == dict(
        zip(
            addresses,
            ({"v2-rest"}, {"v2-grpc"}, {"v2-rest", "kserve-v1"}, {"v2-grpc"}),
            strict=True,
        )
    )
    assert [server["server"] for server in document["servers"]] == ["mlserver", "kserve"]
    for server in document["servers"]:  # KServe's models over gRPC have the names listed over REST
        [simple] = [model for model in server["models"] if model["name"] == "simple"]
        assert [tensor["name"] for tensor in simple["inputs"]] == ["INPUT0", "INPUT1"]
        for response in run_requests(simple):
            assert response["model_name"] == "simple"
    config = load(file, {})
    assert {route.backend for route in config.routes} == {"mlserver"}  # MLServer has all models
