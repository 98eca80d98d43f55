"""Checks the types in callers' requests, because callers might not use a type checker."""

from __future__ import annotations

from typing import Any

from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.tensor import Tensor


def check_types(request: InferRequest) -> None:
    """Raise TypeError, which names the field, if the model, version, id, inputs or outputs of
    ``request`` have the wrong type. Parameters, and the shapes and data of inputs, are not
    checked."""
    _check(request, InferRequest, "request")
    for name in ("model", "version", "id"):
        _check(getattr(request, name), str, f"request.{name}")
    for index, tensor in enumerate(request.inputs):
        name = f"request.inputs[{index}]"
        _check(tensor, Tensor, name)
        _check(tensor.name, str, f"{name}.name")
        _check(tensor.datatype, Datatype, f"{name}.datatype")
    for index, output in enumerate(request.outputs):
        _check(output, RequestedOutput, f"request.outputs[{index}]")


def _check(value: Any, expected: type, name: str) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be {expected.__name__}, not {type(value).__name__}")
