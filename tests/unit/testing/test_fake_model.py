"""``FakeModel``: models that are Python functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gateway_errors import raises_kind
from infergate import GatewayError, InferRequest, Kind, RequestedOutput, tensor
from infergate.testing import FakeModel

INPUTS = {"x": ("FP32", (-1, 2))}
OUTPUTS = {"y": ("FP32", (-1, 2)), "n": ("INT64", (1,))}
REQUEST = InferRequest("m", id="7", inputs=(tensor("x", np.ones((3, 2), np.float32)),))


def model(function: Callable[..., Any], **options: Any) -> FakeModel:
    return FakeModel("m", function, inputs=INPUTS, outputs=OUTPUTS, **options)


async def responses(fake: FakeModel, request: InferRequest = REQUEST) -> list[Any]:
    return [each async for each in fake.stream(request)]


def double(inputs: Any) -> dict[str, Any]:
    return {"y": inputs["x"] * 2, "n": [len(inputs["x"])]}


async def double_asynchronously(inputs: Any) -> dict[str, Any]:
    return double(inputs)


def each_row(inputs: Any) -> Iterator[dict[str, Any]]:
    for row in inputs["x"]:
        yield {"y": row[np.newaxis] * 2, "n": [1]}


async def each_row_asynchronously(inputs: Any) -> AsyncGenerator[dict[str, Any], None]:
    for result in each_row(inputs):
        yield result


@pytest.mark.parametrize("function", [double, double_asynchronously])
async def test_a_function_computes_the_response(function: Callable[..., Any]) -> None:
    [response] = await responses(model(function))
    assert (response.model, response.version, response.id) == ("m", "1", "7")
    assert response.is_last
    y, n = response.outputs
    np.testing.assert_array_equal(y.numpy(), np.full((3, 2), 2))
    assert n.numpy().tolist() == [3]


@pytest.mark.parametrize("function", [each_row, each_row_asynchronously])
async def test_a_generator_makes_a_decoupled_model(function: Callable[..., Any]) -> None:
    fake = model(function)
    assert fake.metadata.decoupled
    assert [each.outputs[1].numpy().tolist() for each in await responses(fake)] == [[1]] * 3


async def test_only_requested_outputs_are_returned() -> None:
    request = InferRequest("m", inputs=REQUEST.inputs, outputs=(RequestedOutput("n"),))
    [response] = await responses(model(double), request)
    assert [each.name for each in response.outputs] == ["n"]


async def test_a_request_that_does_not_fit_the_metadata_is_rejected() -> None:
    request = InferRequest("m", inputs=(tensor("x", [[1, 2]]),))
    with raises_kind(Kind.BAD_REQUEST, "data-type is 'INT64', but model 'm' expects 'FP32'"):
        await responses(model(double), request)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Mock(side_effect=ValueError("boom")), "raised ValueError: boom"),
        (lambda _: None, r"returned NoneType; expected .* \['n', 'y'\]"),
        (lambda _: {"y": [[1, 2]]}, r"returned \['y'\]; expected"),
        (lambda _: {"y": [1], "n": [1]}, r".* output 'y' with shape \[1\]; expected \[-1, 2\]"),
        (lambda _: {"y": [["a", "b"]], "n": [1]}, ".* invalid output 'y': could not convert"),
    ],
)
async def test_the_error_names_the_model_and_the_problem(
    function: Callable[..., Any], text: str
) -> None:
    with raises_kind(Kind.BACKEND_ERROR, f"the function of fake model 'm' {text}"):
        await responses(model(function))


async def test_a_function_may_choose_the_error() -> None:
    busy = Mock(side_effect=GatewayError(Kind.OVERLOADED, "busy", retry_after=3))
    with raises_kind(Kind.OVERLOADED, "^busy$"):
        await responses(model(busy))


async def test_the_maximum_batch_size_is_declared_and_enforced() -> None:
    fake = model(double, max_batch_size=2)
    assert fake.metadata.max_batch_size == 2
    with raises_kind(Kind.BAD_REQUEST, "batch-size must be <= 2"):
        await responses(fake)


def test_an_unknown_datatype_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor 'x': unknown datatype 'float'"):
        FakeModel("m", double, inputs={"x": ("float", (1,))}, outputs={})
