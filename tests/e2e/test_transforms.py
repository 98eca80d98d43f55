"""Tests transforms of photos, texts and scanned digits with the clients of several protocols.
Pillow and numpy compute the expected tensors of photos."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from tritonclient.utils import InferenceServerException

from e2e.clients import Client
from e2e.running import Infergate, started_infergate
from e2e.test_tfserving import call, message_class
from faults.peer import post as post_bytes
from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.tfs import messages as pb
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes
from infergate.core.wire import HttpResponse, join_parts

CONFIG = """
helpers: 1
backends:
  demo: {protocol: builtin}
models:
  photo:
    inputs: [{name: INPUT0, datatype: FP32, shape: [-1, 3, 32, 32]}]
    outputs: [{name: OUTPUT0, datatype: FP32, shape: [-1, 3, 32, 32]}]
  texts:
    inputs:
      - {name: INPUT0, datatype: INT32, shape: [-1, 16]}
      - {name: INPUT1, datatype: FP32, shape: [-1, 2]}
    outputs:
      - {name: OUTPUT0, datatype: INT32, shape: [-1, 16]}
      - {name: OUTPUT1, datatype: FP32, shape: [-1, 2]}
routes:
  - model: photo
    backend: demo
    rewrite: {model: identity}
    transforms:
      inputs:
        - decode_image:
            {tensor: image, datatype: FP32, layout: NCHW, size: [32, 32], resize: crop,
             scale: 1/255, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
        - rename: {image: INPUT0}
      outputs:
        - rename: {OUTPUT0: pixels}
  - model: texts
    backend: demo
    rewrite: {model: identity}
    transforms:
      inputs:
        - text_encode: {tensor: INPUT0, datatype: INT32, length: 16}
        - default: {tensor: INPUT1, datatype: FP32, shape: [2], value: [0.5, 2]}
      outputs:
        - text_decode: {tensor: OUTPUT0, datatype: INT32, length: 16}
        - argmax: {tensor: OUTPUT1, to: best}
  - model: digits
    backend: demo
    transforms:
      inputs:
        - decode_image:
            {tensor: scan, datatype: FP32, color: L, size: [8, 8], method: box, scale: -16/255,
             mean: -16}
        - reshape: {tensor: scan, from: [8, 8, 1], to: [8, 8]}
        - rename: {scan: IMAGE}
      outputs:
        - top_k: {tensor: SCORES, k: 1, values: score, indices: digit}
"""
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
SEVEN = """
 0  0  5 13 16 16  6  0
 0  0 12  6  4 13  9  0
 0  0  0  0  1 15  3  0
 0  0  0  2 10 13  2  0
 0  2 12 16 16 12  5  0
 0  1  6  9 11  0  0  0
 0  0  0 15  1  0  0  0
 0  0  6 11  0  0  0  0
"""


def _encode(pixels: npt.NDArray[np.uint8], kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


COARSE = np.random.default_rng(3).integers(0, 256, (6, 8, 3), np.uint8)
JPEG = _encode(np.asarray(Image.fromarray(COARSE).resize((80, 60))), "JPEG")


def expected_pixels() -> npt.NDArray[np.float32]:
    """Return the tensor of the photo, as Pillow and numpy compute it."""
    image = Image.open(io.BytesIO(JPEG)).resize(
        (32, 32), Image.Resampling.BILINEAR, (10, 0, 70, 60)
    )
    pixels: npt.NDArray[np.float32] = (np.asarray(image) * np.float32(1 / 255) - MEAN) / STD
    return pixels.transpose(2, 0, 1)[np.newaxis]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as running:
        yield running


def post(running: Infergate, path: str, body: Any) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = post_bytes(running.http, path, data)
    return response.status, response.body


def images_of(triton_client: Client, *images: bytes) -> list[Any]:
    array = np.array([*images, b""], np.object_)[:-1].reshape(len(images))
    return [triton_client.input("image", array, "BYTES")]


def test_tritonclient_sends_a_jpeg(triton_client: Client) -> None:
    metadata = triton_client.get_model_metadata("photo", **triton_client.as_json)
    assert [each["name"] for each in metadata["inputs"]] == ["image"]
    assert metadata["inputs"][0]["datatype"] == "BYTES"
    result = triton_client.infer("photo", images_of(triton_client, JPEG, JPEG))
    pixels = result.as_numpy("pixels")
    np.testing.assert_array_equal(pixels, np.repeat(expected_pixels(), 2, axis=0))
    requested = [triton_client.output("pixels")]
    result = triton_client.infer("photo", images_of(triton_client, JPEG), outputs=requested)
    np.testing.assert_array_equal(result.as_numpy("pixels"), expected_pixels())


def test_an_invalid_image_is_the_clients_error_and_names_the_tensor(
    triton_client: Client,
) -> None:
    with pytest.raises(InferenceServerException, match="input 'image': element 1") as caught:
        triton_client.infer("photo", images_of(triton_client, JPEG, JPEG[:500]))
    assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}


def test_json_clients_of_v2_send_base64(gateway: Infergate) -> None:
    text = base64.b64encode(JPEG).decode()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    status, body = post(gateway, "/v2/models/photo/infer", {"inputs": [tensor]})
    assert status == 200
    (output,) = json.loads(body)["outputs"]
    assert (output["name"], output["shape"]) == ("pixels", [1, 3, 32, 32])
    np.testing.assert_allclose(output["data"], expected_pixels().ravel(), rtol=1e-6)


@pytest.mark.parametrize("shape", [[], [1]])
def test_clients_of_tensorflow_serving_send_a_jpeg(gateway: Infergate, shape: list[int]) -> None:
    request = message_class("PredictRequest")(model_spec={"name": "photo"})
    request.inputs["image"].dtype = 7  # DT_STRING
    request.inputs["image"].string_val.append(JPEG)
    for size in shape:
        request.inputs["image"].tensor_shape.dim.add(size=size)
    pixels = call(gateway, pb.PREDICT, request).outputs["pixels"]
    values = np.array(pixels.float_val or np.frombuffer(pixels.tensor_content, "<f4"), np.float32)
    np.testing.assert_array_equal(values, expected_pixels().ravel())
    request.inputs["image"].string_val[0] = b"no image"
    with pytest.raises(grpc.RpcError, match="input 'image': element 0") as caught:
        call(gateway, pb.PREDICT, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_json_clients_of_tensorflow_serving_send_a_jpeg(gateway: Infergate) -> None:
    body = {"instances": [{"b64": base64.b64encode(JPEG).decode()}]}
    status, response = post(gateway, "/v1/models/photo:predict", body)
    assert status == 200, response
    (prediction,) = json.loads(response)["predictions"]
    np.testing.assert_allclose(prediction, expected_pixels()[0], rtol=1e-6)


def test_clients_of_graphpipe_send_a_jpeg(gateway: Infergate) -> None:
    codec = PLUGIN.create({})
    model = ModelMetadata(
        "photo",
        inputs=(TensorMetadata("image", "BYTES", (-1,)),),
        outputs=(TensorMetadata("pixels", "FP32", (-1, 3, 32, 32)),),
    )
    tensor = Tensor("image", Datatype.BYTES, (1,), pack_bytes([JPEG]))
    request = InferRequest("photo", inputs=(tensor,))
    wire = codec.build_request(request, Profile("any"), model)
    status, body = post(gateway, "/graphpipe/photo", bytes(join_parts(wire.body)))
    response = codec.parse_response(
        HttpResponse(status, {}, [body]), request, DEFAULT_LIMITS, model
    )
    assert isinstance(response, InferResponse)
    np.testing.assert_array_equal(response.outputs[0].numpy(), expected_pixels())


def test_text_is_encoded_and_a_missing_input_has_a_default(triton_client: Client) -> None:
    strings = np.array(["héllo".encode(), b""], np.object_)
    inputs = [triton_client.input("INPUT0", strings, "BYTES")]
    result = triton_client.infer("texts", inputs)
    assert result.as_numpy("OUTPUT0").tolist() == strings.tolist()
    assert result.as_numpy("best").tolist() == [1, 1]
    scores = triton_client.input("INPUT1", np.array([[3, 1], [1, 3]], np.float32), "FP32")
    outputs = [triton_client.output("best")]
    result = triton_client.infer("texts", [*inputs, scores], outputs=outputs)
    assert result.as_numpy("best").tolist() == [0, 1]
    assert result.as_numpy("OUTPUT0") is None


def test_a_scanned_digit_is_recognized(triton_client: Client) -> None:
    ink = np.array(SEVEN.split(), np.float32).reshape(8, 8)
    paper = (255 - ink * 255 / 16).round().astype(np.uint8).repeat(10, 0).repeat(10, 1)
    scan = np.array([_encode(paper, "PNG")], np.object_)
    result = triton_client.infer("digits", [triton_client.input("scan", scan, "BYTES")])
    assert result.as_numpy("digit").tolist() == [[7]]
    assert result.as_numpy("score")[0, 0] > 0.9
    config = triton_client.get_model_config("digits", **triton_client.as_json)
    config = config.get("config", config)
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert [each["name"] for each in config["output"]] == ["score", "digit"]


def test_oversized_images_are_refused_and_later_requests_are_served(
    gateway: Infergate,
) -> None:
    bomb = bytearray(_encode(np.zeros((1, 1), np.uint8), "PNG"))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    text = base64.b64encode(bytes(bomb)).decode()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    with ThreadPoolExecutor(8) as threads:
        responses = list(
            threads.map(
                lambda _: post(gateway, "/v2/models/photo/infer", {"inputs": [tensor]}), range(40)
            )
        )
    assert {status for status, _ in responses} == {400}
    assert b"60000 x 60000 pixels" in responses[0][1]
    test_json_clients_of_v2_send_base64(gateway)
