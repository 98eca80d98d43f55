"""The checks of models, hooks, transforms and codec streams report invalid plug-ins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infergate.codecs.profiles import PROFILES
from infergate.codecs.v2_grpc import PLUGIN
from infergate.codecs.v2_rest import PLUGIN as REST
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.plugins import TensorTransform
from infergate.testing import check_hook, check_model, check_stream, check_transform
from plugin_kit import AsyncDouble, BadMetadata, Double, DoubleOptions, Hook, HookOptions

X = tensor_from_array("X", Datatype.FP32, np.ones((1, 2), np.float32))
REQUEST = InferRequest("double", inputs=(X,))
RESPONSE = InferResponse("double", outputs=(replace(X, name="Y"),))


@pytest.mark.parametrize("model", [Double, AsyncDouble])
def test_check_model_returns_the_response_or_raises(model: Any) -> None:
    response = check_model(model, DoubleOptions(3), REQUEST)
    assert response.outputs[0].numpy().tolist() == [[3, 3]]
    with pytest.raises(AssertionError, match="array of float64; FP32 needs float32"):
        check_model(model, DoubleOptions(outcome="dtype"), REQUEST)
    with pytest.raises(GatewayError, match="try later"):
        check_model(model, DoubleOptions(outcome="rejects"), REQUEST)


def test_wrong_metadata_of_a_model_is_found() -> None:
    with pytest.raises(AssertionError, match="datatype 'FLOAT'"):
        check_model(BadMetadata, DoubleOptions(), REQUEST)


@pytest.mark.parametrize(
    ("before", "after", "outputs"),
    [("", "", [[1, 1]]), ("", "adds", [[2, 2]]), ("answers", "", [[0, 0]])],
)
def test_check_hook_returns_the_response(
    before: str, after: str, outputs: list[list[float]]
) -> None:
    response = check_hook(Hook, HookOptions(before=before, after=after), REQUEST, RESPONSE)
    assert response.outputs[0].numpy().tolist() == outputs


@pytest.mark.parametrize(("before", "after"), [("renames", ""), ("data", ""), ("", "nonsense")])
def test_an_invalid_result_of_a_hook_is_found(before: str, after: str) -> None:
    with pytest.raises(AssertionError, match="the gateway rejects"):
        check_hook(Hook, HookOptions(before=before, after=after), REQUEST, RESPONSE)


class Flatten(TensorTransform):
    """Flattens X to Y. ``options`` may replace the name or datatype of Y, or the shape of X."""

    reads = ("X",)
    writes = ("Y",)
    options: Any

    def apply(self, *tensors: Tensor) -> Any:
        values = tensors[0].numpy().reshape(-1)
        name = self.options.get("name", "Y")
        return [tensor_from_array(name, tensors[0].datatype, values)]

    def forward_metadata(self, *tensors: TensorMetadata) -> Any:
        return [TensorMetadata("Y", self.options.get("datatype", "FP32"), (-1,))]

    def backward_metadata(self, *tensors: TensorMetadata) -> Any:
        return [TensorMetadata("X", "FP32", self.options.get("shape", (-1, 2)))]


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_check_transform_returns_the_new_tensors(side: Any) -> None:
    (tensor,) = check_transform(Flatten, {}, [X], side)
    assert (tensor.name, tensor.numpy().tolist()) == ("Y", [1, 1])


@pytest.mark.parametrize(
    ("side", "options", "expected"),
    [
        ("inputs", {"name": "Z"}, r"returned the tensors \('Z',\) instead of \('Y',\)"),
        ("inputs", {"shape": (-1, 3)}, r"'X' is FP32 \[-1, 3\], but the tensor is FP32 \[1, 2\]"),
        ("inputs", {"shape": (-1,)}, r"'X' is FP32 \[-1\], but"),
        ("outputs", {"datatype": "INT32"}, r"'Y' is INT32 \[-1\], but the tensor is FP32 \[2\]"),
        ("outputs", {"datatype": "FLOAT"}, "datatype 'FLOAT'"),
    ],
)
def test_an_invalid_result_of_a_transform_is_found(
    side: Any, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(AssertionError, match=expected):
        check_transform(Flatten, options, [X], side)


def test_a_codec_with_streams_passes() -> None:
    check_stream(PLUGIN, profile=PROFILES["triton"])


@pytest.mark.parametrize(
    ("method", "broken", "expected"),
    [
        ("parse_stream_response", lambda *_: None, "0 instead of 2 responses arrived"),
        ("parse_stream_response", lambda *_: InferResponse("other"), "response of a stream"),
        ("build_stream_request", lambda *_: None, "build_stream_request returns None"),
    ],
)
def test_a_broken_stream_is_reported(method: str, broken: Any, expected: str) -> None:
    def create(options: Any) -> Any:
        codec: Any = PLUGIN.create(options)
        setattr(codec, method, broken)
        return codec

    with pytest.raises(AssertionError, match=expected):
        check_stream(replace(PLUGIN, create=create), profile=PROFILES["triton"])


def test_a_profile_without_streams_is_reported() -> None:
    with pytest.raises(AssertionError, match="build_stream_request returns None"):
        check_stream(REST)
