"""Runs Python models, request hooks and transforms as the gateway does, for tests of plug-ins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.plugin_host.results import (
    InvalidResultError,
    check_metadata,
    check_request,
    check_response,
    model_response,
)
from infergate.plugin_host.transform_step import apply_transform, check_names, check_specs
from infergate.plugins.base import Plugin, PluginCall
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel
from infergate.plugins.transform import TensorTransform

P = TypeVar("P", bound=Plugin)
T = TypeVar("T")


def check_model(
    model_class: type[PythonModel],
    options: Any,
    request: InferRequest,
    limits: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Create a model with ``options``, and return the response that a client receives for
    ``request``.

    Raises AssertionError if the gateway would reject the metadata or the response. Exceptions of
    the model propagate."""

    async def run() -> InferResponse:
        async with _started(model_class(options)) as model:
            metadata = check_metadata(model.metadata)
            result: Any = model.infer(request, PluginCall())
            if inspect.isawaitable(result):
                result = await result
            return model_response(result, request, metadata, limits)

    return _checked(run())


def check_hook(
    hook_class: type[RequestHook],
    options: Any,
    request: InferRequest,
    response: InferResponse,
    limits: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Create a hook with ``options``, and return the response that a client receives for
    ``request`` if the model returns ``response``.

    Raises AssertionError if the gateway would reject the result of the hook. Exceptions of the hook
    propagate."""

    async def run() -> InferResponse:
        call = PluginCall()
        async with _started(hook_class(options)) as hook:
            changed: Any = await hook.before(request, call)
            if isinstance(changed, InferResponse):
                return check_response(changed, request, limits)
            if isinstance(changed, InferRequest):
                check_request(changed, request, limits)
            elif changed is not None:
                text = f"before returned {type(changed).__name__}"
                raise InvalidResultError(f"{text}; expected InferRequest, InferResponse or None")
            result: Any = await hook.after(request, response, call)
            if result is not None and not isinstance(result, InferResponse):
                text = f"after returned {type(result).__name__}"
                raise InvalidResultError(f"{text}; expected InferResponse or None")
            return response if result is None else check_response(result, request, limits)

    return _checked(run())


def check_transform(
    transform_class: type[TensorTransform],
    options: Any,
    tensors: Sequence[Tensor],
    side: Literal["inputs", "outputs"],
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[Tensor, ...]:
    """Create a transform with ``options``, apply it as a step of a route's ``side``, and return the
    tensors that the transform writes. ``tensors`` are the tensors that the transform reads.

    Raises AssertionError if the gateway would reject the tensors or their metadata, or if the
    metadata for clients does not match the tensors. Exceptions of the transform propagate."""

    async def run() -> tuple[Tensor, ...]:
        async with _started(transform_class(options)) as transform:
            check_names(transform)
            after = apply_transform(transform, tensors, limits)
            if side == "inputs":
                described, seen = transform.backward_metadata(*map(_metadata, after)), tensors
            else:
                described, seen = transform.forward_metadata(*map(_metadata, tensors)), after
            specs = check_specs(described, [tensor.name for tensor in seen])
            for tensor, spec in zip(seen, specs, strict=True):
                fits = TensorMetadata("", "", tuple(spec.shape)).accepts_shape(tensor.shape)
                if tensor.datatype.name != spec.datatype or not fits:
                    raise InvalidResultError(
                        f"the metadata of '{tensor.name}' is {spec.datatype} "
                        f"{list(spec.shape)}, but the tensor is {tensor.datatype.name} "
                        f"{list(tensor.shape)}"
                    )
            return after

    return _checked(run())


@asynccontextmanager
async def _started(plugin: P) -> AsyncGenerator[P, None]:
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.close()


def _metadata(tensor: Tensor) -> TensorMetadata:
    return TensorMetadata(tensor.name, tensor.datatype.name, tensor.shape)


def _checked(running: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(running)
    except InvalidResultError as error:
        raise AssertionError(f"the gateway rejects the result: {error}") from error
