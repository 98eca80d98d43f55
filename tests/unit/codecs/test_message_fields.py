"""The fields of binary messages that the console shows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from infergate.codecs.base import SupportsMessageFields
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.messages import (
    InferRequest,
    ModelMetadata,
    ModelMetadataRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse

METADATA = ModelMetadata(
    "m", inputs=(TensorMetadata("x", "FP32", (-1,)),), outputs=(TensorMetadata("y", "FP32", (-1,)),)
)
VALUES = tensor_from_array("x", Datatype.FP32, np.arange(100, dtype="f4").reshape(1, 100))


def codec_of(protocol: str) -> Any:
    codec = plugins()[protocol].create({})
    assert isinstance(codec, SupportsMessageFields)
    return codec


def request_of(protocol: str, tensor: Tensor = VALUES) -> HttpRequest:
    request = InferRequest("m", inputs=(tensor,))
    return codec_of(protocol).build_request(request, GENERIC, METADATA)


def test_a_graphpipe_request_has_its_tensors_with_their_first_elements() -> None:
    codec = codec_of("graphpipe")
    fields = codec.request_fields(request_of("graphpipe"))
    [tensor] = fields["req"]["input_tensors"]
    assert (fields["req_type"], fields["req"]["input_names"]) == ("InferRequest", ["x"])
    assert (tensor["type"], tensor["shape"], tensor["data"]) == ("10 (FP32)", [1, 100], "400 bytes")
    assert tensor["elements"] == [float(value) for value in range(32)]
    text = Tensor("x", Datatype.BYTES, (2,), pack_bytes([b"one", b"t" * 1000]))
    fields = codec.request_fields(request_of("graphpipe", text))
    [tensor] = fields["req"]["input_tensors"]
    assert [len(value) for value in tensor["string_val"]] == [3, 256]
    metadata_request = codec.build_request(ModelMetadataRequest("m"), GENERIC, None)
    assert codec.request_fields(metadata_request) == {"req_type": "MetadataRequest"}


def test_a_legacy_request_has_its_header_and_the_size_of_its_body() -> None:
    codec = codec_of("trtis-http")
    fields = codec.request_fields(request_of("trtis-http"))
    header = fields["nv-inferrequest"]
    assert [entry["name"] for entry in header["input"]] == ["x"]
    assert fields["body"].startswith("400 bytes")
    response = HttpResponse(200, {"NV-InferResponse": 'model_name: "m"'}, [b"1234"])
    fields = codec.response_fields(response)
    assert fields == {
        "NV-InferResponse": {"model_name": "m"},
        "body": "4 bytes: the data of the tensors, in the header's order",
    }
    assert codec.response_fields(HttpResponse(200, {"NV-InferResponse": "{"}, [])) is None
    assert codec.response_fields(HttpResponse(200, {"NV-InferResponse": "a" * 20_000}, [])) is None


@pytest.mark.parametrize("protocol", ["graphpipe", "trtis-http"])
def test_damaged_messages_raise_no_exception(protocol: str) -> None:
    codec = codec_of(protocol)
    generator = random.Random(3)
    message = b"".join(map(bytes, request_of("graphpipe").body))
    for _ in range(300):
        data = bytearray(message[: generator.randrange(len(message))])
        for _ in range(min(4, len(data))):
            data[generator.randrange(len(data))] = generator.randrange(256)
        codec.request_fields(HttpRequest("POST", "/graphpipe/m", body=[bytes(data)]))
        codec.response_fields(HttpResponse(200, {}, [bytes(data)]))
