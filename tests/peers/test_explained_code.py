"""Tests that the programs that ``infergate explain`` prints run with the real client libraries."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.running import Infergate, started_infergate
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.migration.explain.client_code import code_of
from infergate.migration.explain.client_inference import ClientAddresses, ClientInference
from peers.support.graphpipe import prepare_graphpipe
from peers.support.installed import Installed
from peers.support.kserve import prepare_kserve
from peers.support.legacy_client import prepare_legacy_client
from peers.support.process import client_environment
from peers.support.tfserving import prepare_tfserving_api

pytestmark = pytest.mark.peers

CONFIG = """
backends: {b: {protocol: builtin}}
routes:
  - {model: simple, backend: b}
  - {model: "*", backend: b, rewrite: {model: identity}}
models:
  texts: {inputs: [{name: INPUT0, datatype: BYTES, shape: [-1]}], outputs: [
    {name: OUTPUT0, datatype: BYTES, shape: [-1]}]}
  numbers: {inputs: [{name: INPUT0, datatype: FP32, shape: [-1]}], outputs: [
    {name: OUTPUT0, datatype: FP32, shape: [-1]}]}
"""
PEERS: dict[str, Callable[[], Installed]] = {
    "kserve": prepare_kserve,
    "tensorflow-serving-api": prepare_tfserving_api,
    "tensorrtserver": prepare_legacy_client,
    "graphpipe": prepare_graphpipe,
}
# tensorrtserver uses names that numpy has removed, and passes a ctypes array to protobuf.
LEGACY_PREAMBLE = """
import numpy as np
vars(np).update(object=object, bool=bool)
from tensorrtserver import api
for kind in (api.ServerStatus,):
    kind.ParseFromString = lambda self, data, read=kind.ParseFromString: read(self, bytes(data))
"""
A = np.arange(16, dtype=np.int32).reshape(1, 16)
SUM, DIFFERENCE = (A + 3).tolist(), (A - 3).tolist()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as running:
        yield running


def printed(
    client: str, gateway: Infergate, request: InferRequest, tmp_path: Path,
    metadata: ModelMetadata | None = None,
) -> str:  # fmt: skip
    """Run the program for ``client``, and return its output."""
    addresses = ClientAddresses(gateway.http, gateway.grpc)
    headers = {"authorization": "Bearer x"}
    inference = ClientInference(request, addresses, headers, metadata, None, tmp_path)
    code = code_of([client], inference)[client]
    peer = PEERS[client]()
    environ = client_environment(AUTHORIZATION="Bearer x")
    if client == "tensorrtserver":
        code = LEGACY_PREAMBLE + code
        environ["LD_LIBRARY_PATH"] = str(peer.folder / "openssl")
    done = subprocess.run(
        [str(peer.python), "-"], input=code, env=environ, capture_output=True, text=True,
        timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def simple(**changes: Any) -> InferRequest:
    inputs = (("INPUT0", A), ("INPUT1", np.full_like(A, 3)))
    tensors = [tensor_from_array(name, Datatype.INT32, array) for name, array in inputs]
    return InferRequest("simple", inputs=tuple(tensors), **changes)


SIMPLE = ModelMetadata(
    "simple",
    outputs=tuple(TensorMetadata(f"OUTPUT{n}", "INT32", (-1, 16)) for n in range(2)),
    max_batch_size=8,
)


def test_the_kserve_program(gateway: Infergate, tmp_path: Path) -> None:
    outputs = (RequestedOutput("OUTPUT1"),)
    text = printed("kserve", gateway, simple(version="1", id="7", outputs=outputs), tmp_path)
    assert text == f"OUTPUT1 {DIFFERENCE}\n"
    text = printed("kserve", gateway, simple(parameters={"p": 1}), tmp_path)
    assert text == f"OUTPUT0 {SUM}\nOUTPUT1 {DIFFERENCE}\n"


def test_the_tensorflow_serving_api_program(gateway: Infergate, tmp_path: Path) -> None:
    outputs = (RequestedOutput("OUTPUT0"),)
    request = simple(version="1", outputs=outputs)
    text = printed("tensorflow-serving-api", gateway, request, tmp_path)
    assert text.startswith("OUTPUT0 dtype: DT_INT32 ")
    assert text.count("int_val: ") == 16
    assert "int_val: 18 " in text


@pytest.mark.parametrize("outputs", [(), (RequestedOutput("OUTPUT0"),)])
def test_the_tensorrtserver_program(
    gateway: Infergate, tmp_path: Path, outputs: tuple[RequestedOutput, ...]
) -> None:
    request = simple(version="1", outputs=outputs)
    text = printed("tensorrtserver", gateway, request, tmp_path, SIMPLE)
    assert f"OUTPUT0 {SUM}" in text
    assert (f"OUTPUT1 {DIFFERENCE}" in text) is (not outputs)


def test_the_graphpipe_program(gateway: Infergate, tmp_path: Path) -> None:
    text = printed("graphpipe", gateway, simple(version="1"), tmp_path)
    assert text == f"{SUM}\n{DIFFERENCE}\n"


@pytest.mark.parametrize("client", PEERS)
def test_texts_and_long_tensors(client: str, gateway: Infergate, tmp_path: Path) -> None:
    numbers = tensor_from_array("INPUT0", Datatype.FP32, np.arange(2000, dtype=np.float32) / 7)
    text = Tensor("INPUT0", Datatype.BYTES, (2,), b"\2\0\0\0ab\1\0\0\0c")
    for model, tensor in (("numbers", numbers), ("texts", text)):
        spec = TensorMetadata("OUTPUT0", tensor.datatype.value, (-1,))
        metadata = ModelMetadata(model, outputs=(spec,))
        output = printed(client, gateway, InferRequest(model, inputs=(tensor,)), tmp_path, metadata)
        if model == "texts":
            assert "ab" in output
            assert "c" in output
        else:
            assert "285.5714" in output
            assert (tmp_path / "0-INPUT0.bin").read_bytes() == bytes(tensor.data)
