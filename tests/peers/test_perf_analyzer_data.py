"""Tests that perf_analyzer accepts exported inferences as input data, and checks their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from e2e.running import Infergate, started_infergate
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.recording.perf_analyzer import export_perf_analyzer
from peers.support.installed import Installed
from peers.support.perf_analyzer import measured
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

CONFIG = """
backends:
  triton: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
routes:
  - {{model: "*", backend: triton}}
"""
ROWS = TensorMetadata("", "INT32", (-1, 16))
BATCHED = ModelMetadata("simple", inputs=(ROWS,), max_batch_size=8)
SERVERS = ("triton", "infergate")


@pytest.fixture(scope="module")
def gateway(triton: Triton, perf_analyzer: Installed) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(triton=triton)) as running:
        yield running


@pytest.fixture(params=SERVERS)
def address(request: pytest.FixtureRequest, gateway: Infergate, triton: Triton) -> str:
    return triton.grpc if request.param == "triton" else gateway.grpc


def simple(rows: int, value: int, error: int = 0) -> Exchange:
    left = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    right = np.full((rows, 16), value, np.int32)
    arrays = {"INPUT0": left, "INPUT1": right}
    results = {"OUTPUT0": left + right + error, "OUTPUT1": left - right}
    inputs, outputs = (
        tuple(tensor_from_array(name, Datatype.INT32, array) for name, array in each.items())
        for each in (arrays, results)
    )
    response = InferResponse("simple", outputs=outputs)
    return Exchange(InferRequest("simple", inputs=inputs), Outcome((response,)))


def measure(address: str, model: str, file: Path, *options: str) -> float:
    return measured(address, model, "-i", "grpc", f"--input-data={file}", *options)


def test_requests_with_outputs_are_accepted(address: str, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    summary = export_perf_analyzer([simple(1, 3), simple(4, -7)], file, BATCHED)
    assert (summary.requests, summary.has_outputs) == (5, True)
    assert measure(address, "simple", file) > 0


def test_wrong_outputs_are_reported(address: str, tmp_path: Path) -> None:
    """The previous test relies on this comparison of outputs."""
    file = tmp_path / "data.json"
    export_perf_analyzer([simple(1, 3, error=1)], file, BATCHED)
    with pytest.raises(RuntimeError, match="Output doesn't match expected output"):
        measure(address, "simple", file)


def test_sequences_are_accepted(address: str, tmp_path: Path) -> None:
    def step(sequence: int, value: int, **marks: bool) -> Exchange:
        inputs = (tensor_from_array("INPUT", Datatype.INT32, np.array([value])),)
        parameters = {"sequence_id": sequence, **marks}
        request = InferRequest("accumulate", parameters=parameters, inputs=inputs)
        return Exchange(request, Outcome((), None))

    file = tmp_path / "data.json"
    steps = [
        step(1, 1, sequence_start=True),
        step(2, 10, sequence_start=True),
        step(1, 2, sequence_end=True),
        step(2, 20),
        step(2, 30, sequence_end=True),
    ]
    assert not export_perf_analyzer(steps, file).has_outputs
    assert measure(address, "accumulate", file) > 0


@pytest.mark.parametrize("datatype", ["BOOL", "UINT64", "FP16", "FP32", "BF16", "BYTES"])
def test_values_of_each_kind_are_accepted(triton: Triton, datatype: str, tmp_path: Path) -> None:
    kind = Datatype(datatype)
    if kind is Datatype.BYTES:
        tensor = Tensor("INPUT0", kind, (3,), pack_bytes([b"a\0b", b"", b"\xff"]))
    elif kind is Datatype.BOOL:
        tensor = Tensor("INPUT0", kind, (3,), b"\1\0\1")
    else:
        tensor = Tensor("INPUT0", kind, (3,), bytes(range(1, 1 + 3 * kind.itemsize)))
    model = f"id_{datatype}"
    file = tmp_path / "data.json"
    # The model's outputs have a variable shape, for which perf_analyzer rejects expected outputs.
    export_perf_analyzer([Exchange(InferRequest(model, inputs=(tensor,)), Outcome())], file)
    assert measure(triton.grpc, model, file) > 0
