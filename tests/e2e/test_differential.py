"""Tests that a request gets the same response through pass-through, through translation, and from
Triton.

``fwd.M`` renames only the model, so requests pass through if the protocols agree. ``tr.M`` also
renames a tensor that no model has, so every request to it is translated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from e2e.clients import ARRAYS, client
from e2e.running import Infergate, started_infergate
from faults.peer import post
from faults.watch import metric
from peers.support.triton import Triton

CONFIG = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
routes:
  - {{model: '/fwd\\.http\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/fwd\\.grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - {{model: '/tr\\.http\\.(.+)/', backend: rest, rewrite: {{model: '\\1', inputs: {{no: none}}}}}}
  - {{model: '/tr\\.grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1', inputs: {{no: none}}}}}}
"""


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(http=triton.http, grpc=triton.grpc)) as running:
        yield running


def infer(form: str, address: Any, model: str, datatype: str) -> tuple[Any, ...]:
    with client(form, address.http, address.grpc) as triton_client:
        tensor = triton_client.input("INPUT0", ARRAYS[datatype], datatype)
        result = triton_client.infer(model, [tensor], request_id="same")
        response = result.get_response()
        array = result.as_numpy("OUTPUT0")
        if triton_client.http:
            return (response["id"], response["model_version"], array.dtype, array.tolist())
        return (response.id, response.model_version, array.dtype, array.tolist())


@pytest.mark.parametrize("form", ["http", "grpc"])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_pass_through_and_translation_equal_triton(
    gateway: Infergate, triton: Triton, form: str, datatype: str
) -> None:
    model = f"id_{datatype}"
    expected = infer(form, triton, model, datatype)
    assert infer(form, gateway, f"fwd.{form}.{model}", datatype) == expected
    assert infer(form, gateway, f"tr.{form}.{model}", datatype) == expected


def json_request(shape: list[int], data: object, datatype: str = "FP32") -> bytes:
    tensor = {"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data}
    return json.dumps({"id": "j", "inputs": [tensor]}).encode()


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("id_FP32", json_request([3], [0.1, 2, -3e-7])),
        ("id_FP32", json_request([2], [[1.5], [2.5]])),
        ("id_INT64", json_request([2], [2**53 + 1, -(2**63)], "INT64")),
        ("id_BYTES", json_request([2], ['é\n"', ""], "BYTES")),
        ("id_FP32", json_request([2], [math.nan, -math.inf])),
    ],
    ids=["floats", "nested", "int64", "strings", "non-finite"],
)  # fmt: skip
def test_json_pass_through_and_translation_equal_triton(
    gateway: Infergate, triton: Triton, model: str, body: bytes
) -> None:
    expected = post(triton.http, f"/v2/models/{model}/infer", body)
    assert expected.status == 200
    expected_outputs = [np.asarray(o["data"]).astype("U") for o in expected.json["outputs"]]
    dtype = np.float32 if "FP32" in model else None
    for prefix in ("fwd", "tr"):
        response = post(gateway.http, f"/v2/models/{prefix}.http.{model}/infer", body)
        assert response.status == 200
        assert response.json["model_name"] == f"{prefix}.http.{model}"
        for output, expected_data in zip(response.json["outputs"], expected_outputs, strict=True):
            data = np.asarray(output["data"])
            if dtype is not None:
                np.testing.assert_array_equal(data.astype(dtype), expected_data.astype(dtype))
            else:
                assert data.astype("U").tolist() == expected_data.tolist()


INVALID_REQUESTS = {
    "too few elements": json_request([3], [1, 2]),
    "2^40 elements": json_request([2**40], [1]),
    "overflow": json_request([2**32, 2**32], []),
    "negative": json_request([-1], [1]),
    "deep": b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":'
    + b"[" * 5000 + b"1" + b"]" * 5000 + b"}]}",
    "not json": b"{",
    "string number": json_request([1], ["5"]),
    "numeric id": b'{"id":1,"inputs":[]}',
    "unknown datatype": json_request([1], [1], "FLOAT"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID_REQUESTS)
@pytest.mark.parametrize("prefix", ["fwd", "tr"])
def test_invalid_requests_never_reach_the_server(
    gateway: Infergate, prefix: str, case: str
) -> None:
    path = f"/v2/models/{prefix}.http.id_FP32/infer"
    before = metric(gateway, "infergate_backend_seconds_count")
    response = post(gateway.http, path, INVALID_REQUESTS[case])
    assert 400 <= response.status < 500
    assert response.error
    assert metric(gateway, "infergate_backend_seconds_count") == before
    assert post(gateway.http, path, json_request([1], [1])).status == 200
