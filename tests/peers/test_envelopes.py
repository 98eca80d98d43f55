"""Tests of OpenAI's SDK and MLflow's scoring client, both unmodified, through infergate to embedded
models, to another infergate over V2 REST and gRPC, and to Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from infergate import __version__
from peers.support.envelopes import mlflow_report, openai_report
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

WITH_ENVELOPES = LISTENERS.replace(
    'http: {{address: "127.0.0.1:{2}"}}',
    """http:
    address: "127.0.0.1:{2}"
    envelopes:
      mlflow: {{model: simple}}
      embeddings: {{models: {{embed: {{input: TEXT, output: EMBEDDING, tokens: TOKENS}}}}}}""",
)
CONFIG = """
backends:
  b: {{{backend}}}
routes:
  - {{model: "*", backend: b}}
"""
BACKENDS = ("builtin", "v2-rest", "v2-grpc", "triton")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(backend="protocol: builtin"), WITH_ENVELOPES) as running:
        yield running


@pytest.fixture(params=BACKENDS, scope="module")
def gateway(
    request: pytest.FixtureRequest, embedded: Infergate, triton: Triton
) -> Iterator[tuple[str, Infergate]]:
    """Yield the name of the backend, and the gateway."""
    if request.param == "builtin":
        yield request.param, embedded
        return
    backend = {
        "v2-rest": f'protocol: v2-rest, endpoints: ["http://{embedded.http}"]',
        "v2-grpc": f'protocol: v2-grpc, endpoints: ["grpc://{embedded.grpc}"]',
        "triton": f'protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]',
    }[request.param]
    with started_infergate(CONFIG.format(backend=backend), WITH_ENVELOPES) as running:
        yield request.param, running


@pytest.mark.usefixtures("openai_client")
def test_openais_sdk_gets_embeddings_and_errors(gateway: tuple[str, Infergate]) -> None:
    backend, running = gateway
    results = openai_report(running.http, "embed")
    vectors, indices, tokens = results["default_encoding"]["ok"]
    assert (indices, tokens) == ([0, 1, 2], 8)
    assert results["floats"]["ok"][0] == vectors
    assert results["one_text"]["ok"][0] == vectors[:1]
    assert results["many_texts"] == {"ok": 63}
    if backend == "triton":
        assert vectors == [[11, 5, 3, 1], [11, 4, 3, 1], [9, 2, 2, 1]]
    else:
        near, far = np.array(vectors[1:]) @ vectors[0]
        assert near > 0.5 > far
    assert results["an_unknown_model"] == {"error": ["NotFoundError", 404, "model_not_found"]}
    for name in ("dimensions", "tokens", "too_many_texts"):
        assert results[name] == {"error": ["BadRequestError", 400, None]}, name


def sums(rows: Any) -> Any:
    return [row["OUTPUT0"] for row in rows]


@pytest.mark.usefixtures("mlflow_client")
def test_mlflows_client_gets_predictions_and_errors(gateway: tuple[str, Infergate]) -> None:
    _, running = gateway
    results = mlflow_report(running.http)
    expected = (np.arange(32).reshape(2, 16) + 1).tolist()
    assert results["version"] == {"ok": __version__}
    assert sums(results["columns"]["ok"]) == expected
    assert sums(results["a_table"]["ok"]) == expected
    assert "error code 400" in results["a_wrong_table"]["error"]
    assert "the model has the inputs INPUT0, INPUT1" in results["a_wrong_table"]["error"]
    assert sums(results["params"]["ok"]) == expected
