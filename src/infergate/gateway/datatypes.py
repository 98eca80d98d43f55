"""Casts tensors whose datatype a protocol does not support, and classifies outputs if the backend
does not classify them. Long work runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from infergate.core.accounting import charge_tensors
from infergate.core.datatypes import Datatype
from infergate.core.limits import KIB, MIB
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, data_bytes
from infergate.gateway import cast
from infergate.gateway.classification import add_classes
from infergate.gateway.route_binding import RouteBinding

MAX_INLINE_CAST_BYTES: Final = 2 * MIB
MAX_INLINE_CLASSIFY_BYTES: Final = 64 * KIB
"""Maximum bytes of tensors that the event loop casts or classifies. Both take at most 15 ms."""

T = TypeVar("T")


async def cast_for_backend(
    request: InferRequest, binding: RouteBinding, context: RequestContext
) -> InferRequest:
    """Return ``request`` with the inputs cast to datatypes that the backend's protocol supports.
    Raises UNSUPPORTED, and OVERLOADED if memory is short."""
    inputs, protocol = request.inputs, binding.backend.protocol
    unsupported, casts = binding.unsupported_datatypes, binding.route.cast
    cast_inputs = await _cast_if_needed(inputs, unsupported, casts, "input", protocol, context)
    return request if cast_inputs is inputs else replace(request, inputs=cast_inputs)


async def _cast_if_needed(  # noqa: PLR0913, PLR0917 - the parameters of cast_unsupported
    tensors: tuple[Tensor, ...],
    unsupported: frozenset[Datatype],
    casts: cast.CastRules,
    side: str,
    protocol: str,
    context: RequestContext,
) -> tuple[Tensor, ...]:
    if unsupported.isdisjoint([tensor.datatype for tensor in tensors]):
        return tensors
    arguments = tensors, unsupported, casts, side, protocol
    result = await _in_thread_if_large(
        tensors, MAX_INLINE_CAST_BYTES, cast.cast_unsupported, *arguments
    )
    charge_tensors(result, (tensor.data for tensor in tensors), context.memory)
    return result


async def cast_substitutes_back(
    request: InferRequest, model: ModelMetadata, casts: cast.CastRules, context: RequestContext
) -> InferRequest:
    """Return ``request`` with each input of a substitute datatype cast back to the datatype in
    ``model``. ``casts`` maps each datatype to its substitute."""
    inputs = await _in_thread_if_large(
        request.inputs, MAX_INLINE_CAST_BYTES, cast.cast_back, request.inputs, model, casts
    )
    charge_tensors(inputs, (tensor.data for tensor in request.inputs), context.memory)
    return replace(request, inputs=inputs)


async def _in_thread_if_large(
    tensors: Sequence[Tensor], max_bytes: int, function: Callable[..., T], *arguments: Any
) -> T:
    """Run ``function``, which computes with ``tensors``. A thread runs it if the tensors exceed
    ``max_bytes``, because numpy releases the interpreter lock."""
    if data_bytes(tensors) > max_bytes:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


async def fit_response(  # noqa: PLR0913, PLR0917 - the settings of two steps
    response: InferResponse,
    request: InferRequest,
    model: ModelMetadata | None,
    casts: cast.CastRules,
    labels: Mapping[str, Sequence[str]],
    context: RequestContext,
) -> InferResponse:
    """Return ``response`` with the outputs cast to datatypes that the client's protocol supports.
    If ``model`` is not None, the outputs for which ``request`` requests classes are classified with
    ``labels``."""
    outputs, unsupported = response.outputs, context.unsupported_datatypes
    if unsupported:
        protocol = context.record.protocol
        cast_outputs = await _cast_if_needed(
            outputs, unsupported, casts, "output", protocol, context
        )
        if cast_outputs is not outputs:
            response = replace(response, outputs=cast_outputs)
    if model is None:
        return response
    return await _in_thread_if_large(
        response.outputs, MAX_INLINE_CLASSIFY_BYTES, add_classes, response, request, model, labels
    )


def metadata_for_client(
    model: ModelMetadata, binding: RouteBinding, context: RequestContext
) -> ModelMetadata:
    """Return ``model`` with the tensors and datatypes that the client sees. Raises
    GatewayError."""
    for layer in binding.metadata_layers:
        model = layer.transform_metadata(model)
    if not (binding.route.cast and context.unsupported_datatypes):
        return model
    return cast.substitute_datatypes(
        model, cast.casts_of(context.unsupported_datatypes, binding.route.cast)
    )
