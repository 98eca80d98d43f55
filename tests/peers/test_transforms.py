"""Unmodified clients send JPEG files through config/transforms.yaml to a model behind a real Triton
that expects normalized pixels. The results are compared with Pillow and numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image

from e2e.running import Infergate, started_infergate
from peers.support.installed import PROJECT
from peers.support.tfserving import ovmsclient_photo
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

EXAMPLE = PROJECT / "config" / "transforms.yaml"
PLAIN = """\
  - model: pixels
    backend: triton
    rewrite: {model: id_image}
    transforms:
      inputs:
        - decode_image: {tensor: image, datatype: FP32, layout: NCHW, size: [224, 224]}
        - rename: {image: INPUT0}
"""
"""A route that returns the decoded pixels."""
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    """Yield a gateway with the example, with the names of the test's model, which returns its
    input."""
    _, _, config = EXAMPLE.read_text().partition("\nhelpers:")
    for name, real in (
        ("${TRITON_URL:-grpc://127.0.0.1:8011}", f"grpc://{triton.grpc}"),
        ("resnet50_onnx", "id_image"),
        ("image: data", "image: INPUT0"),
        ("logits", "OUTPUT0"),
    ):
        assert name in config
        config = config.replace(name, real)
    config = config.replace("routes:", f"routes:\n{PLAIN}#", 1)
    with started_infergate(f"helpers:{config}") as running:
        yield running


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a landscape JPEG whose EXIF orientation makes it a portrait."""
    coarse = np.random.default_rng(5).integers(0, 256, (9, 12, 3), np.uint8)
    image = Image.fromarray(coarse).resize((480, 360), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path_factory.mktemp("photo") / "photo.jpg"
    image.save(file, quality=90, exif=exif)
    return file


def cropped(photo: Path) -> npt.NDArray[np.float32]:
    """Return what torchvision's Resize(256), CenterCrop(224), ToTensor and Normalize yield."""
    with Image.open(photo) as image:
        upright = image.transpose(Image.Transpose.ROTATE_270)
    small = upright.resize((256, 341), Image.Resampling.BILINEAR)
    left, top = round((256 - 224) / 2), round((341 - 224) / 2)
    pixels = np.asarray(small.crop((left, top, left + 224, top + 224)))
    normal: npt.NDArray[np.float32] = (pixels * np.float32(1 / 255) - MEAN) / STD
    return np.ascontiguousarray(normal.transpose(2, 0, 1))[np.newaxis]


def best(photo: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the five largest probabilities of each row, and their positions."""
    logits = cropped(photo)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = powers / powers.sum(axis=-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1, kind="stable")[..., :5]
    return np.take_along_axis(probabilities, order, -1), order


def stretched(photo: Path) -> npt.NDArray[np.float32]:
    """Return the decoded pixels."""
    with Image.open(photo) as image:
        upright = image.transpose(Image.Transpose.ROTATE_270)
    small = upright.resize((224, 224), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32).transpose(2, 0, 1)[np.newaxis]


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_ovmsclient_sends_a_jpeg(
    gateway: Infergate, photo: Path, transport: str, ovmsclient: None
) -> None:
    address = gateway.grpc if transport == "grpc" else gateway.http
    report = ovmsclient_photo(address, transport, "resnet", photo)
    assert report.keys() == {"scores", "classes", "metadata"}, report
    scores, classes = best(photo)
    np.testing.assert_array_equal(report["classes"], classes)
    np.testing.assert_allclose(report["scores"], scores, rtol=1e-6)
    if transport == "grpc":  # over REST, the client returns the server's document
        assert report["metadata"]["inputs"]["image"]["dtype"] == "DT_STRING"


def test_ovmsclient_gets_an_error_that_names_the_input(
    gateway: Infergate, photo: Path, tmp_path: Path, ovmsclient: None
) -> None:
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(photo.read_bytes()[:3000])
    report = ovmsclient_photo(gateway.grpc, "grpc", "resnet", cut)
    assert "InvalidInputError" in report["error"]
    assert "input 'image': element 0: the JPEG image cannot be decoded" in report["error"]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_tritonclient_sends_a_jpeg(gateway: Infergate, photo: Path, module: Any) -> None:
    address = gateway.http if module is tritonclient.http else gateway.grpc
    client = module.InferenceServerClient(address)
    files = np.array([photo.read_bytes()] * 2, np.object_)
    tensor = module.InferInput("image", [2], "BYTES")
    tensor.set_data_from_numpy(files)
    pixels = client.infer("pixels", [tensor]).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(pixels, np.repeat(stretched(photo), 2, axis=0))
    classes = client.infer(
        "resnet", [tensor], outputs=[module.InferRequestedOutput("classes")]
    ).as_numpy("classes")
    np.testing.assert_array_equal(classes, np.repeat(best(photo)[1], 2, axis=0))
    client.close()
