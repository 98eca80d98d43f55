"""Tests of unmodified clients that send JPEG files through config/transforms.yaml to an ONNX model
in a real Triton. The model expects normalized pixels. The results are compared with results of
Pillow, numpy and onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image

from e2e.running import Infergate, started_infergate
from peers import graphpipe_client
from peers.support.installed import PROJECT, Installed
from peers.support.onnx import loaded_classifier, write_classifier
from peers.support.process import scenario_results
from peers.support.tfserving import ovmsclient_photo
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

EXAMPLE = PROJECT / "config" / "transforms.yaml"
STRETCHED = """\
  - model: logits
    backend: triton
    rewrite: {model: resnet50_onnx}
    transforms:
      inputs:
        - decode_image: {tensor: image, datatype: FP32, layout: NCHW, size: [224, 224]}
        - rename: {image: data}
"""
"""A route that does not transform the outputs of the model."""
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Photos:
    """Image files, and the results of the model without infergate and Triton: the five best classes
    of each file and their probabilities, and the logits of both files with stretched pixels."""

    files: Sequence[Path]
    scores: Sequence[Array]
    classes: Sequence[Array]
    logits: Array
    model: Path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, onnx: None) -> Photos:
    """Write an upright JPEG, and a landscape whose EXIF orientation makes it a portrait."""
    folder = tmp_path_factory.mktemp("photos")
    files = [folder / "upright.jpg", folder / "turned.jpg"]
    for number, (file, size) in enumerate(zip(files, [(500, 310), (480, 360)], strict=True)):
        coarse = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6 if file.stem == "turned" else 1
        enlarged = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        enlarged.save(file, quality=90, exif=exif)
    batches = {file.stem: cropped(upright(file)) for file in files}
    batches["both"] = np.concatenate([stretched(upright(file)) for file in files])
    model = folder / "model.onnx"
    logits = write_classifier(model, batches)
    best = [best_of(logits[file.stem]) for file in files]
    assert best[0][1].tolist() != best[1][1].tolist()
    scores, classes = zip(*best, strict=True)
    return Photos(files, scores, classes, logits["both"], model)


@pytest.fixture(scope="module")
def gateway(triton: Triton, photos: Photos) -> Iterator[Infergate]:
    """Yield a gateway with the example and the route ``logits``."""
    _, _, config = EXAMPLE.read_text().partition("\nhelpers:")
    config = config.replace("routes:", f"routes:\n{STRETCHED}#", 1)
    with (
        tritonclient.http.InferenceServerClient(triton.http, network_timeout=100) as client,
        loaded_classifier(client, "resnet50_onnx", photos.model),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TRITON_URL", f"grpc://{triton.grpc}")
        with started_infergate(f"helpers:{config}") as running:
            yield running


def upright(photo: Path) -> Image.Image:
    with Image.open(photo) as image:
        if photo.stem == "turned":
            return image.transpose(Image.Transpose.ROTATE_270)
        image.load()
        return image


def cropped(image: Image.Image) -> npt.NDArray[np.float32]:
    """Return the result of torchvision's Resize(256), CenterCrop(224), ToTensor and Normalize."""
    width, height = (256 * side // min(image.size) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    pixels = np.asarray(small.crop((left, top, left + 224, top + 224)))
    normal: npt.NDArray[np.float32] = (pixels * np.float32(1 / 255) - MEAN) / STD
    return np.ascontiguousarray(normal.transpose(2, 0, 1))[np.newaxis]


def stretched(image: Image.Image) -> npt.NDArray[np.float32]:
    """Return the pixels of the image, resized to the model's size."""
    small = image.resize((224, 224), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32).transpose(2, 0, 1)[np.newaxis]


def best_of(logits: Array) -> tuple[Array, Array]:
    """Return the five largest probabilities of each row, and their positions."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = powers / powers.sum(axis=-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1, kind="stable")[..., :5]
    return np.take_along_axis(probabilities, order, -1), order


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_ovmsclient_sends_a_jpeg(
    gateway: Infergate, photos: Photos, transport: str, number: int, ovmsclient: None
) -> None:
    address = gateway.grpc if transport == "grpc" else gateway.http
    report = ovmsclient_photo(address, transport, "resnet", photos.files[number])
    assert report.keys() == {"scores", "classes", "metadata"}, report
    np.testing.assert_array_equal(report["classes"], photos.classes[number])
    np.testing.assert_allclose(report["scores"], photos.scores[number], rtol=1e-6)
    if transport == "grpc":  # over REST, the client returns the server's document
        assert report["metadata"]["inputs"]["image"]["dtype"] == "DT_STRING"


def test_ovmsclient_gets_an_error_that_names_the_input(
    gateway: Infergate, photos: Photos, tmp_path: Path, ovmsclient: None
) -> None:
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(photos.files[0].read_bytes()[:3000])
    report = ovmsclient_photo(gateway.grpc, "grpc", "resnet", cut)
    assert "InvalidInputError" in report["error"]
    assert "input 'image': element 0: the JPEG image cannot be decoded" in report["error"]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_tritonclient_sends_two_jpegs(gateway: Infergate, photos: Photos, module: Any) -> None:
    address = gateway.http if module is tritonclient.http else gateway.grpc
    tensor = module.InferInput("image", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([file.read_bytes() for file in photos.files], np.object_))
    with module.InferenceServerClient(address) as client:
        logits = client.infer("logits", [tensor]).as_numpy("logits")
        np.testing.assert_array_equal(logits, photos.logits)
        requested = [module.InferRequestedOutput("classes")]
        classes = client.infer("resnet", [tensor], outputs=requested).as_numpy("classes")
    np.testing.assert_array_equal(classes, np.concatenate(photos.classes))


def test_the_client_of_graphpipe_sends_two_jpegs(
    gateway: Infergate, photos: Photos, graphpipe: Installed
) -> None:
    program = Path(graphpipe_client.__file__).with_name("photos.py")
    url = f"http://{gateway.http}/graphpipe/resnet"
    names = "scores,classes"
    outputs = scenario_results(graphpipe.python, program, url, "image", names, *photos.files)
    np.testing.assert_array_equal(outputs["classes"], np.concatenate(photos.classes))
    np.testing.assert_allclose(outputs["scores"], np.concatenate(photos.scores), rtol=1e-6)
