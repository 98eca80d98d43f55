"""MLServer and KServe behave as their test models declare, without the gateway."""

from __future__ import annotations

import http.client
import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client

from peers.support.kserve import KServe
from peers.support.mlserver import MLServer


def infer(address: str, model: str, *inputs: tuple[str, list[int], list[Any]]) -> tuple[int, Any]:
    """POST an inference as JSON; inputs are datatype, shape, data."""
    tensors = [
        {"name": f"INPUT{i}", "datatype": datatype, "shape": shape, "data": data}
        for i, (datatype, shape, data) in enumerate(inputs)
    ]
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(
            "POST",
            f"/v2/models/{model}/infer",
            json.dumps({"inputs": tensors}),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status == http.HTTPStatus.OK else body
    finally:
        connection.close()


@pytest.fixture(params=["mlserver", "kserve"])
def server(request: pytest.FixtureRequest) -> MLServer | KServe:
    running: MLServer | KServe = request.getfixturevalue(request.param)
    return running


pytestmark = pytest.mark.peers


def test_simple(server: MLServer | KServe) -> None:
    numbers = ("INT32", [1, 16], list(range(16)))
    status, answer = infer(server.http, "simple", numbers, numbers)
    assert status == 200
    data = {output["name"]: output["data"] for output in answer["outputs"]}
    assert data == {"OUTPUT0": list(range(0, 32, 2)), "OUTPUT1": [0] * 16}


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("FP32", [1.5, -2.0]), ("INT64", [2**53 + 1]), ("BOOL", [True, False]), ("BYTES", ["é"])],
)
def test_identity(server: MLServer | KServe, datatype: str, data: list[Any]) -> None:
    status, answer = infer(server.http, "identity", (datatype, [len(data)], data))
    assert status == 200
    assert answer["outputs"][0]["data"] == data


def test_identity_over_grpc(server: MLServer | KServe) -> None:
    array = np.array([1.5, -2.0], np.float32)
    tensor = client.InferInput("INPUT0", [2], "FP32")
    tensor.set_data_from_numpy(array)
    with client.InferenceServerClient(server.grpc) as triton_client:
        answer = triton_client.infer("identity", [tensor])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), array)


def test_fail(server: MLServer | KServe) -> None:
    status, reported = infer(server.http, "fail", ("FP32", [1], [1.0]))
    assert status == 500
    assert b"the model failed" in reported
