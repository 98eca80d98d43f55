"""Tests in which perf_analyzer measures models of five kinds of servers through the gateway.

perf_analyzer reads metadata, configuration and statistics before and after the measurement. Its
HTTP client is stricter than tritonclient's in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from e2e.running import Infergate, started_infergate
from peers.support.graphpipe import started_graphpipe_server
from peers.support.installed import Installed
from peers.support.kserve import KServe
from peers.support.mlserver import MLServer
from peers.support.perf_analyzer import measured
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

CONFIG = """
control: {{shared_memory: true}}
backends:
  embedded: {{protocol: builtin}}
  triton.rest: {{protocol: v2-rest, endpoints: ["http://{triton.http}"]}}
  triton.grpc: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
  mlserver.rest: {{protocol: v2-rest, endpoints: ["http://{mlserver.http}"]}}
  mlserver.grpc: {{protocol: v2-grpc, endpoints: ["grpc://{mlserver.grpc}"]}}
  kserve.rest: {{protocol: v2-rest, endpoints: ["http://{kserve.http}"]}}
  kserve.grpc: {{protocol: v2-grpc, endpoints: ["grpc://{kserve.grpc}"]}}
  graphpipe: {{protocol: graphpipe, endpoints: ["http://{graphpipe}"]}}
routes:
{routes}
models:
  mlserver.rest: &simple
    max_batch_size: 8
    inputs: &tensors
      - {{name: INPUT0, datatype: INT32, shape: [-1, 16]}}
      - {{name: INPUT1, datatype: INT32, shape: [-1, 16]}}
    outputs:
      - {{name: OUTPUT0, datatype: INT32, shape: [-1, 16]}}
      - {{name: OUTPUT1, datatype: INT32, shape: [-1, 16]}}
  mlserver.grpc: *simple
  kserve.rest: *simple
  kserve.grpc: *simple
"""
ROUTE = "  - {{model: {0}, backend: {0}, rewrite: {{model: {1}}}}}"
SIMPLE = ("embedded", "triton.rest", "triton.grpc", "mlserver.rest", "mlserver.grpc", "kserve.rest")
MODELS = {**dict.fromkeys((*SIMPLE, "kserve.grpc"), "simple"), "graphpipe": "sum"}
SHAPES = {"graphpipe": ("--shape=a:2,2", "--shape=b:2,2")}
MEMORY = ("--shared-memory=system", "--output-shared-memory-size=64")
CLIENTS = {
    "http": ("-i", "http"),
    "http-json": ("-i", "http", "--input-tensor-format=json", "--output-tensor-format=json"),
    "http-memory": ("-i", "http", *MEMORY),
    "grpc": ("-i", "grpc"),
    "grpc-memory": ("-i", "grpc", *MEMORY),
    "grpc-stream": ("-i", "grpc", "--streaming"),
}


@pytest.fixture(scope="module")
def gateway(
    triton: Triton,
    mlserver: MLServer,
    kserve: KServe,
    graphpipe: Installed,
    perf_analyzer: Installed,
) -> Iterator[Infergate]:
    with ExitStack() as stack:
        config = CONFIG.format(
            triton=triton,
            mlserver=mlserver,
            kserve=kserve,
            graphpipe=stack.enter_context(started_graphpipe_server("sum", graphpipe)),
            routes="\n".join(ROUTE.format(*each) for each in MODELS.items()),
        )
        yield stack.enter_context(started_infergate(config))


PAIRS = [
    (model, client)
    for model in MODELS
    for client in CLIENTS
    # With JSON, perf_analyzer supports only one shape, and only Triton's parameters of outputs.
    if client != "http-json" or model.startswith(("embedded", "triton"))
]


@pytest.mark.parametrize(("model", "client"), PAIRS)
def test_perf_analyzer_measures(gateway: Infergate, model: str, client: str) -> None:
    address = gateway.http if client.startswith("http") else gateway.grpc
    assert measured(address, model, *CLIENTS[client], *SHAPES.get(model, ())) > 0
