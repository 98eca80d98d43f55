"""Tests the paths of SageMaker, Vertex AI, OpenAI and MLflow with the embedded models and with a
real Triton over HTTP and gRPC."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from e2e.running import Infergate, started_infergate
from faults.peer import Answer, post
from faults.watch import until
from peers.support.triton import Triton

ROUTE, PREDICT = "/v1/endpoints/7/deployedModels/8", "/v1/endpoints/7/deployedModels/8:predict"
LISTENERS = f"""
listeners:
  admin: {{{{address: "127.0.0.1:{{0}}"}}}}
  grpc: {{{{address: "127.0.0.1:{{1}}"}}}}
  http:
    address: "127.0.0.1:{{2}}"
    envelopes:
      sagemaker: {{{{model: SIMPLE}}}}
      vertex: {{{{model: SIMPLE, health_route: {ROUTE}, predict_route: "{PREDICT}"}}}}
      embeddings:
        models:
          embed: &embed {{{{input: TEXT, output: EMBEDDING, tokens: TOKENS}}}}
          rest.embed: *embed
          grpc.embed: *embed
"""
EMBEDDED = """
backends:
  demo: {protocol: builtin}
routes:
  - {model: "*", backend: demo}
"""
BEFORE_TRITON = """
backends:
  demo: {{protocol: builtin}}
  rest: {{protocol: v2-rest, endpoints: ["http://{http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
routes:
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - {{model: "*", backend: demo}}
control: {{repository: true}}
"""
SAGEMAKER_TYPE = "application/vnd.sagemaker-triton.binary+json"
VERTEX_TYPE = "application/vnd.vertex-ai-triton.binary+json"
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
RANGE, ONES = np.arange(16, dtype="<i4"), np.ones(16, "<i4")


def send(
    gateway: Infergate, path: str, body: Any = None, method: str = "", **headers: str
) -> Answer:
    """Send ``body``. A body that is not bytes is encoded as JSON."""
    data = (
        body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
    )
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return post(
        gateway.http, path, data, header_fields, method or ("GET" if body is None else "POST")
    )


def simple(*, binary: bool = False) -> Any:
    """Return the body for ``simple``: a JSON object or, with ``binary``, the JSON head and the
    data."""
    inputs = [
        {"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": array.tolist()}
        for i, array in enumerate((RANGE, ONES))
    ]
    if not binary:
        return {"inputs": inputs}
    for item in inputs:
        del item["data"]
        item["parameters"] = {"binary_data_size": 64}
    head = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    return json.dumps(head).encode(), RANGE.tobytes() + ONES.tobytes()


def check_simple(gateway: Infergate, path: str, binary_type: str, headers: dict[str, str]) -> None:
    """Infer ``simple`` in JSON and in binary form."""
    response = send(gateway, path, simple(), **headers)
    assert response.status == 200, response
    assert response.headers["content-type"] == "application/json"
    assert response.json["outputs"][0]["data"] == (RANGE + ONES).tolist()
    head, data = simple(binary=True)
    content_type = f"{binary_type};json-header-size={len(head)}"
    response = send(gateway, path, head + data, content_type=content_type, **headers)
    assert response.status == 200, response
    binary_header, _, size = response.headers["content-type"].rpartition("=")
    assert binary_header == f"{binary_type};json-header-size"
    names = [output["name"] for output in json.loads(response.body[: int(size)])["outputs"]]
    arrays = np.frombuffer(response.body[int(size) :], "<i4").reshape(2, 16)
    by_name = dict(zip(names, arrays.tolist(), strict=True))
    assert by_name == {"OUTPUT0": (RANGE + ONES).tolist(), "OUTPUT1": (RANGE - ONES).tolist()}


def vectors(response: Answer) -> list[list[float]]:
    """Return the vectors of a response, whether they are lists or base64."""
    assert response.status == 200, response
    items = [item["embedding"] for item in response.json["data"]]
    return [
        np.frombuffer(base64.b64decode(item), "<f4").tolist() if isinstance(item, str) else item
        for item in items
    ]


# ---- the embedded models


@pytest.fixture(scope="module")
def embedded() -> Iterator[Infergate]:
    with started_infergate(EMBEDDED, LISTENERS.replace("SIMPLE", "simple")) as running:
        yield running


@pytest.mark.parametrize("path", ["/ping", ROUTE, "/v2/health/ready"])
def test_health_paths_report_readiness(embedded: Infergate, path: str) -> None:
    assert send(embedded, path).status == 200


def test_the_embedded_models_in_both_clouds(embedded: Infergate) -> None:
    check_simple(embedded, "/invocations", SAGEMAKER_TYPE, {})
    check_simple(embedded, "/models/simple/invoke", SAGEMAKER_TYPE, {})
    check_simple(embedded, "/models/7b2e/invoke", SAGEMAKER_TYPE, {TARGET: "simple"})
    check_simple(embedded, PREDICT, VERTEX_TYPE, {})
    check_simple(embedded, PREDICT, VERTEX_TYPE, {REDIRECT: "v2/models/simple/infer"})


def test_the_listener_still_serves_its_other_protocols(embedded: Infergate) -> None:
    assert send(embedded, "/v2/models/simple/infer", simple()).status == 200
    row = {"INPUT0": RANGE.tolist(), "INPUT1": ONES.tolist()}
    response = send(embedded, "/v1/models/simple:predict", {"instances": [row]})
    assert response.json["predictions"][0]["OUTPUT0"] == (RANGE + ONES).tolist()


def test_models_are_listed_but_not_loaded_without_control(embedded: Infergate) -> None:
    models = send(embedded, "/models").json["models"]
    assert {"modelName": "embed", "modelUrl": ""} in models
    assert send(embedded, "/models/embed").json["modelName"] == "embed"
    assert send(embedded, "/models/nosuch").status == 404
    rejected = send(embedded, "/models", {"model_name": "a", "url": "/opt/ml/models/a/model"})
    assert (rejected.status, "not allowed" in rejected.json["error"]) == (503, True)


def test_vertex_redirects(embedded: Infergate) -> None:
    response = send(embedded, PREDICT, {}, **{REDIRECT: "v2/models/embed"})
    assert response.json["inputs"][0]["name"] == "TEXT"
    response = send(embedded, PREDICT, {}, **{REDIRECT: "v2/repository/models/embed/unload"})
    assert response.status == 403


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(embedded: Infergate, encoding: str) -> None:
    body = {"model": "embed", "input": ["a red house", "two ships"], "encoding_format": encoding}
    response = send(embedded, "/v1/embeddings", body)
    embeddings = np.array(vectors(response))
    assert embeddings.shape == (2, 64)
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1)
    assert response.json["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


def test_embeddings_of_a_long_request(embedded: Infergate) -> None:
    """64 texts of 4 KiB are more JSON than the event loop parses itself."""
    texts = [letter * 4096 for letter in "abcdefgh" * 8]
    body = {"input": texts, "model": "embed", "padding": None, "encoding_format": "base64"}
    response = send(embedded, "/v1/embeddings", body)
    assert response.status == 200  # null means absent
    embeddings = vectors(response)
    assert len(embeddings) == 64
    assert embeddings[0] == embeddings[8] != embeddings[1]


def test_errors_have_openais_form(embedded: Infergate) -> None:
    response = send(embedded, "/v1/embeddings", {"model": "nosuch", "input": "a"})
    assert (response.status, response.json["error"]["code"]) == (404, "model_not_found")
    response = send(embedded, "/v1/embeddings", {"model": "embed", "input": ["a"] * 65})
    assert (response.status, "batch-size" in response.json["error"]["message"]) == (400, True)


ACCESS = """
access:
  keys:
    - {name: sdk, sha256: "DIGEST"}
  rules:
    - {who: ["key:sdk"], models: [embed]}
""".replace("DIGEST", hashlib.sha256(b"secret").hexdigest())


def test_access_rules_apply_to_envelopes() -> None:
    """The SDK sends its API key as a bearer token, and names the model in the body."""
    key = {"authorization": "Bearer secret"}
    body = {"model": "embed", "input": "a"}
    with started_infergate(EMBEDDED + ACCESS, LISTENERS.replace("SIMPLE", "simple")) as gateway:
        assert send(gateway, "/v1/embeddings", body, **key).status == 200
        rejected = send(gateway, "/v1/embeddings", body)
        assert (rejected.status, rejected.json["error"]["type"]) == (401, "authentication_error")
        forbidden = send(gateway, "/v1/embeddings", {**body, "model": "rest.embed"}, **key)
        assert (forbidden.status, forbidden.json["error"]["type"]) == (403, "permission_error")
        assert send(gateway, "/models/embed/invoke", {}, **key).status == 400
        assert send(gateway, "/invocations", simple(), **key).status == 403


# ---- rows and tables


ROWS_LISTENERS = (
    LISTENERS.partition("      sagemaker")[0]
    + f"""\
      mlflow: {{{{model: digits}}}}
      vertex: {{{{model: simple, health_route: /h, predict_route: "{PREDICT}", body: instances}}}}
"""
)


@pytest.fixture(scope="module")
def rows_gateway() -> Iterator[Infergate]:
    with started_infergate(EMBEDDED, ROWS_LISTENERS) as running:
        yield running


IMAGE = np.eye(8).tolist()


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [IMAGE, IMAGE]},
        {"inputs": [IMAGE, IMAGE], "params": {"any": 1}},
        {"inputs": {"IMAGE": [IMAGE, IMAGE]}},
        {"dataframe_records": [{"IMAGE": IMAGE}, {"IMAGE": IMAGE}]},
        {"dataframe_split": {"columns": ["IMAGE"], "index": [0, 1], "data": [[IMAGE], [IMAGE]]}},
    ],
)
def test_each_mlflow_request_format_is_served(rows_gateway: Infergate, body: Any) -> None:
    response = send(rows_gateway, "/invocations", body, content_type="application/json")
    assert response.status == 200, response
    assert np.array(response.json["predictions"]).shape == (2, 10)


def test_the_error_of_a_long_mlflow_request(rows_gateway: Infergate) -> None:
    """The event loop does not parse 400 KiB of JSON."""
    body = {"instances": [np.full((8, 8), 1 / 3).tolist()] * 300}
    response = send(rows_gateway, "/invocations", body, content_type="application/json")
    assert "batch-size must be <= 64" in response.json["message"]
    assert (response.status, response.json["error_code"]) == (400, "BAD_REQUEST")


def test_mlflow_health_version_and_unsupported_content(rows_gateway: Infergate) -> None:
    assert send(rows_gateway, "/ping").status == send(rows_gateway, "/health").status == 200
    assert send(rows_gateway, "/version").headers["content-type"] == "text/plain"
    assert send(rows_gateway, "/invocations", b"a\n1\n", content_type="text/xml").status == 415
    rejected = send(rows_gateway, "/invocations", b"a\n1\n", content_type="text/csv")
    assert (rejected.status, rejected.json["error_code"]) == (400, "BAD_REQUEST")


def test_vertex_instances(rows_gateway: Infergate) -> None:
    assert send(rows_gateway, "/h").status == 200
    row = {"INPUT0": RANGE.tolist(), "INPUT1": ONES.tolist()}
    response = send(rows_gateway, PREDICT, {"instances": [row, row], "parameters": {"a": 1}})
    assert [item["OUTPUT1"] for item in response.json["predictions"]] == [
        (RANGE - ONES).tolist()
    ] * 2


# ---- Triton


@pytest.fixture(scope="module")
def triton_gateway(triton: Triton) -> Iterator[Infergate]:
    config = BEFORE_TRITON.format(http=triton.http, grpc=triton.grpc)
    with started_infergate(config, LISTENERS.replace("SIMPLE", "rest.simple")) as running:
        yield running


@pytest.mark.parametrize("backend", ["rest", "grpc"])
def test_tritons_models_in_both_clouds(triton_gateway: Infergate, backend: str) -> None:
    model = f"{backend}.simple"
    check_simple(triton_gateway, f"/models/{model}/invoke", SAGEMAKER_TYPE, {})
    check_simple(triton_gateway, PREDICT, VERTEX_TYPE, {REDIRECT: f"v2/models/{model}/infer"})


def test_messages_pass_through_to_triton(triton_gateway: Infergate) -> None:
    check_simple(triton_gateway, "/invocations", SAGEMAKER_TYPE, {})
    until(
        lambda: '"pipeline":"forward"' in triton_gateway.log.read_text(),
        "the message is passed through",
    )


@pytest.mark.parametrize("backend", ["rest", "grpc"])
def test_embeddings_from_triton(triton_gateway: Infergate, backend: str) -> None:
    body = {"model": f"{backend}.embed", "input": ["a red house", "größe"]}
    response = send(triton_gateway, "/v1/embeddings", body)
    assert vectors(response) == [[11, 5, 3, 1], [7, 1, 1, 1]]
    assert response.json["usage"]["total_tokens"] == 4
    assert response.json["model"] == f"{backend}.embed"


def test_a_model_is_loaded_and_unloaded(triton_gateway: Infergate) -> None:
    load = {"model_name": "rest.id_INT8", "url": "/opt/ml/models/id_INT8/model"}
    assert send(triton_gateway, "/models/rest.id_INT8", method="DELETE").status == 200
    assert send(triton_gateway, "/models/rest.id_INT8").status == 404
    assert send(triton_gateway, "/models", load).status == 200
    assert send(triton_gateway, "/models/rest.id_INT8").status == 200
    unknown = send(triton_gateway, "/models", {"model_name": "rest.nosuch", "url": ""})
    assert unknown.status >= 400
