"""Tests reloads that change the transforms of a route whose responses are cached."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from e2e.several import reloaded
from faults.payloads import document
from faults.peer import Answer, get, post
from faults.rpc import RpcBackend, call

SIDE, COUNT = 64, 8
"""Pixels per side, and images per request. There are enough images for a helper process to add the
labels."""
CONFIG = f"""
helpers: 1
reload: {{watch: false, post: true}}
backends:
  server: {{protocol: v2-grpc, profile: generic, endpoints: ["grpc://ADDRESS"]}}
models:
  pixels:
    inputs: [{{name: INPUT0, datatype: FP32, shape: [-1, {SIDE}, {SIDE}, 1]}}]
    outputs: [{{name: OUTPUT0, datatype: FP32, shape: [-1, {SIDE**2}]}}]
routes:
  - model: pixels
    backend: server
    idempotent: true
    cache: {{ttl: 1h}}
    transforms:
"""
BRIGHTEST = f"""\
      inputs:
        - decode_image: {{tensor: scan, datatype: FP32, color: L, size: [{SIDE}, {SIDE}]}}
        - rename: {{scan: INPUT0}}
      outputs:
        - top_k: {{tensor: OUTPUT0, k: 1, labels: brightest, classes: LABELS}}
"""
"""Transforms that return the position of the brightest pixel of each image."""
DARKEST = (
    BRIGHTEST.replace("scan", "photo")
    .replace("brightest", "darkest")
    .replace("L,", "L, scale: -1,")
)


class Gateway:
    """A running infergate whose transforms a test replaces."""

    def __init__(self, running: Infergate, labels: Path) -> None:
        self.running = running
        self._labels = labels
        self._file = running.log.parent / "routes.yaml"
        self._start = self._file.read_text().partition("    transforms:\n")[0]

    def use(self, transforms: str, label: str = "p") -> None:
        """Reload with ``transforms``, and with labels that begin with ``label``."""
        write_labels(self._labels, label)
        steps = transforms.replace("LABELS", str(self._labels))
        self._file.write_text(f"{self._start}    transforms:\n{steps}")
        assert reloaded(self.running)["ok"]

    def infer(self, name: str, images: list[bytes]) -> Answer:
        texts = [base64.b64encode(each).decode() for each in images]
        tensor = {"name": name, "datatype": "BYTES", "shape": [len(images)], "data": texts}
        return post(self.running.http, "/v2/models/pixels/infer", document(tensor))

    def tensors(self) -> list[list[str]]:
        """Return the names of the model's inputs and outputs in V2 REST, TFS REST and V2 gRPC."""
        rest = get(self.running.http, "/v2/models/pixels").json
        tfs = get(self.running.http, "/v1/models/pixels/metadata").json["metadata"]["signature_def"]
        (signature,) = tfs["signature_def"].values()
        with grpc.insecure_channel(self.running.grpc) as channel:
            query = pb.ModelMetadataRequest(name="pixels").SerializeToString()
            method = "/inference.GRPCInferenceService/ModelMetadata"
            rpc = pb.ModelMetadataResponse.FromString(call(channel, query, method).message)
        names = [[each["name"] for each in (*rest["inputs"], *rest["outputs"])]]
        names.append([*signature["inputs"], *signature["outputs"]])
        names.append([each.name for each in (*rpc.inputs, *rpc.outputs)])
        return names


def write_labels(file: Path, label: str = "p") -> None:
    file.write_text("\n".join(f"{label}{position}" for position in range(SIDE**2)))


def images(seed: int) -> tuple[list[bytes], list[int], list[int]]:
    """Return images, and the positions of their brightest and darkest pixels."""
    random = np.random.default_rng(seed)
    files, brightest, darkest = [], [], []
    for _ in range(COUNT):
        pixels = random.integers(1, 255, SIDE**2, np.uint8)
        bright, dark = random.choice(SIDE**2, 2, replace=False).tolist()
        pixels[bright], pixels[dark] = 255, 0
        file = io.BytesIO()
        Image.fromarray(pixels.reshape(SIDE, SIDE)).save(file, "PNG")
        files.append(file.getvalue())
        brightest.append(bright)
        darkest.append(dark)
    return files, brightest, darkest


def output(response: Answer) -> tuple[str, Any]:
    """Return the name and the elements of the only output."""
    assert response.status == 200, response
    (tensor,) = response.json["outputs"]
    assert tensor["shape"] == [COUNT, 1]
    return tensor["name"], tensor["data"]


def labels(positions: list[int], label: str = "p") -> list[str]:
    return [f"{label}{position}" for position in positions]


def echo(message: bytes, _context: grpc.ServicerContext) -> bytes:
    """Return INPUT0 as OUTPUT0 [N, pixels]."""
    request = pb.ModelInferRequest.FromString(message)
    response = pb.ModelInferResponse(model_name="pixels", model_version="1")
    shape = [request.inputs[0].shape[0], SIDE**2]
    response.outputs.add(name="OUTPUT0", datatype="FP32", shape=shape)
    response.raw_output_contents.append(request.raw_input_contents[0])
    return bytes(response.SerializeToString())


@pytest.fixture(scope="module")
def started_gateway(rpc: RpcBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    rpc.respond = echo
    file = tmp_path_factory.mktemp("labels") / "labels.txt"
    write_labels(file)
    config = (CONFIG + BRIGHTEST).replace("ADDRESS", rpc.address).replace("LABELS", str(file))
    with started_infergate(config) as running:
        yield Gateway(running, file)


@pytest.fixture
def gateway(started_gateway: Gateway, rpc: RpcBackend) -> Gateway:
    """Use the transforms ``BRIGHTEST``."""
    started_gateway.use(BRIGHTEST)
    return started_gateway


def test_a_reload_changes_the_transforms_for_new_requests(
    gateway: Gateway, rpc: RpcBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request in flight keeps the transforms that were active when it started."""
    files, brightest, darkest = images(1)
    entered, release = threading.Event(), threading.Event()

    def wait(message: bytes, context: grpc.ServicerContext) -> bytes:
        entered.set()
        release.wait(60)
        return echo(message, context)

    assert gateway.tensors() == [["scan", "brightest"]] * 3
    with ThreadPoolExecutor(1) as thread:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(rpc, "respond", wait)
                pending = thread.submit(gateway.infer, "scan", files)
                assert entered.wait(60)
            gateway.use(DARKEST)
            assert gateway.tensors() == [["photo", "darkest"]] * 3
            assert output(gateway.infer("photo", files)) == ("darkest", labels(darkest))
            rejected = gateway.infer("scan", files)
            assert not pending.done()
        finally:
            release.set()
        assert output(pending.result(60)) == ("brightest", labels(brightest))
    assert rejected.status == 400
    assert b"input 'photo': there is no such tensor" in rejected.body


def test_cached_responses_are_transformed_and_changed_transforms_make_them_obsolete(
    gateway: Gateway, rpc: RpcBackend
) -> None:
    files, brightest, darkest = images(2)
    before = len(rpc.requests)

    def infer() -> tuple[str, tuple[str, Any]]:
        response = gateway.infer("scan", files)
        return response.headers["cache-status"].partition("; ttl=")[0], output(response)

    miss, hit = "infergate; fwd=miss; stored", "infergate; hit"
    assert infer() == (miss, ("brightest", labels(brightest)))
    assert infer() == (hit, ("brightest", labels(brightest)))
    gateway.use(BRIGHTEST)  # a reload that changes nothing
    assert infer() == (hit, ("brightest", labels(brightest)))
    assert len(rpc.requests) == before + 1
    gateway.use(BRIGHTEST, "q")  # other content of the labels file
    assert infer() == (miss, ("brightest", labels(brightest, "q")))
    gateway.use(DARKEST.replace("photo", "scan"), "q")
    assert infer() == (miss, ("darkest", labels(darkest, "q")))
    assert infer() == (hit, ("darkest", labels(darkest, "q")))
    assert len(rpc.requests) == before + 3
