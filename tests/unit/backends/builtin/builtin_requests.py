"""Helpers for the tests of the embedded models: requests and expected errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway_errors import raises_kind
from infergate.backends.builtin import BuiltinBackend
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, tensor_from_array

CONTEXT = RequestContext("test")


def int32(name: str, values: Any) -> Tensor:
    return tensor_from_array(name, Datatype.INT32, np.array(values, np.int32))


def fp32(name: str, values: Any) -> Tensor:
    return tensor_from_array(name, Datatype.FP32, np.array(values, np.float32))


def strings(name: str, values: Any) -> Tensor:
    return tensor_from_array(name, Datatype.BYTES, np.array(values, np.object_))


async def infer(backend: BuiltinBackend, request: InferRequest) -> InferResponse:
    response = await backend.perform(request, CONTEXT)
    assert isinstance(response, InferResponse)
    return response


async def rejection(backend: BuiltinBackend, operation: Any, kind: Kind = Kind.BAD_REQUEST) -> str:
    with raises_kind(kind) as caught:
        await backend.perform(operation, CONTEXT)
    return caught.value.public


def requested_outputs(*names: str, **parameters: Any) -> tuple[RequestedOutput, ...]:
    return tuple(RequestedOutput(name, parameters) for name in names)
