"""Tests of KServe's SDK and a KServe transformer with the gateway as their predictor."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.running import Infergate, started_infergate
from peers.support.kserve import KServe, kserve_report, started_transformer
from peers.support.mlserver import MLServer

pytestmark = pytest.mark.peers

CONFIG = """
backends:
  b: {protocol: PROTOCOL, endpoints: ["SERVER"]}
routes:
  - {model: simple, backend: b}
"""
SIMPLE = {"OUTPUT0": [3, 3], "OUTPUT1": [-1, -1]}


@pytest.fixture(scope="module", params=["embedded", "kserve", "mlserver"])
def gateway(
    request: pytest.FixtureRequest, kserve: KServe, mlserver: MLServer
) -> Iterator[Infergate]:
    server = {"kserve": kserve.grpc, "mlserver": mlserver.grpc}.get(request.param)
    config = CONFIG.replace("SERVER", f"grpc://{server}").replace("PROTOCOL", "v2-grpc")
    if server is None:
        config = CONFIG.replace(', endpoints: ["SERVER"]', "").replace("PROTOCOL", "builtin")
    with started_infergate(config) as running:
        yield running


def test_the_sdk_checks_readiness_and_infers(gateway: Infergate) -> None:
    assert kserve_report(gateway.http, gateway.grpc) == {
        "rest live": True,
        "rest ready": True,
        "rest model ready": True,
        "rest unknown model ready": False,
        "rest infer": SIMPLE,
        "rest infer binary": SIMPLE,
        "grpc live": True,
        "grpc ready": True,
        "grpc model ready": True,
        "grpc infer": SIMPLE,
    }


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_a_transformer_uses_the_gateway_as_its_predictor(gateway: Infergate, protocol: str) -> None:
    predictor = gateway.http if protocol == "v2" else gateway.grpc
    body: dict[str, Any] = {
        "inputs": [
            {"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [i + 1] * 16}
            for i in range(2)
        ]
    }
    with started_transformer(predictor, protocol) as transformer:
        url = f"http://{transformer.http}/v2/models/simple"
        with urllib.request.urlopen(f"{url}/ready") as response:
            assert json.load(response)["ready"] is True
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/infer", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            outputs = {each["name"]: each["data"] for each in json.load(response)["outputs"]}
    assert outputs == {"OUTPUT0": [6] * 16, "OUTPUT1": [-1] * 16}
