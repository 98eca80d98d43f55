"""Tests of V2 clients through infergate and a stand-in for rest-proxy to a real Triton, and of
base64 inputs as the clients of rest-proxy send them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import FORMS, Array, Client, client
from e2e.running import Infergate, started_infergate
from peers.support.rest_proxy import NUMBERS, started_rest_proxy
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

CONFIG = """
backends:
  proxy: {{protocol: v2-rest, endpoints: ["http://{}"]}}
  triton: {{protocol: v2-grpc, endpoints: ["grpc://{}"]}}
routes:
  - {{model: direct, backend: triton, rewrite: {{model: id_BYTES}}}}
  - {{model: "*", backend: proxy}}
"""
ARRAYS: dict[str, Array] = {
    **{
        name: np.array([0, 1] if name == "BOOL" else [0, 1, 100], dtype)
        for name, dtype in NUMBERS.items()
    },
    "INT64": np.array([2**53 + 1, -(2**63)], np.int64),
    "FP32": np.array([0.1, -1e30], np.float32),
    "BYTES": np.array(["é".encode(), b"plain", b""], np.object_),
}


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    with (
        started_rest_proxy(triton.grpc) as proxy,
        started_infergate(CONFIG.format(proxy, triton.grpc)) as created,
    ):
        yield created


@pytest.fixture(params=FORMS)
def triton_client(request: pytest.FixtureRequest, gateway: Infergate) -> Iterator[Client]:
    with client(request.param, gateway.http, gateway.grpc) as created:
        yield created


@pytest.mark.parametrize("datatype", ARRAYS)
def test_each_datatype_is_returned_unchanged(triton_client: Client, datatype: str) -> None:
    array = ARRAYS[datatype]
    result = triton_client.infer(f"id_{datatype}", [triton_client.input("INPUT0", array, datatype)])
    output = result.as_numpy("OUTPUT0")
    assert output.dtype == array.dtype
    assert output.tolist() == array.tolist()


@pytest.mark.parametrize("content_type", ["base64", "b64", "BASE64", "B64"])
def test_base64_inputs_have_base64_outputs(gateway: Infergate, content_type: str) -> None:
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [2], "data": ["/w==", ""]}
    request = urllib.request.Request(
        f"http://{gateway.http}/v2/models/direct/infer",
        json.dumps({"inputs": [tensor | {"parameters": {"content_type": content_type}}]}).encode(),
    )
    with urllib.request.urlopen(request) as response:
        (output,) = json.load(response)["outputs"]
    assert output["parameters"] == {"content_type": "base64"}
    assert output["data"] == tensor["data"]


def test_metadata_and_errors_of_the_proxy_are_translated(triton_client: Client) -> None:
    metadata = triton_client.get_model_metadata(
        "simple", **({} if triton_client.http else {"as_json": True})
    )
    shapes = [[int(each) for each in tensor["shape"]] for tensor in metadata["inputs"]]
    assert shapes == [[-1, 16]] * 2
    with pytest.raises(InferenceServerException, match="unknown model") as caught:
        triton_client.infer("nosuch", [triton_client.input("INPUT0", ARRAYS["FP32"], "FP32")])
    assert caught.value.status() in {"404", "StatusCode.NOT_FOUND"}
