"""Transforms the requests and responses of a route.

Short steps run on the event loop, and long numpy steps in a thread. A helper process, or a thread
if there are no helpers, decodes images and runs Python code for single elements. The memory for
steps in helpers and threads is charged before the steps run. Steps of plug-ins run outside these
threads and helpers (``AsyncStep``)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from infergate.core.accounting import charge_tensors
from infergate.core.client_key import client_key
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, data_bytes
from infergate.gateway.cast import CastRules
from infergate.gateway.classification import request_values, requests_classes
from infergate.gateway.datatypes import fit_response
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.transforms.route_transforms import RouteTransforms, StepGroup, StepSizes
from infergate.transforms.step import AsyncStep

_MEASURED_INLINE_BYTES: Final = 256 * 1024
"""Maximum size in bytes of images whose headers are read on the event loop."""
_NO_SHARED_MEMORY: Final = "tensors in shared memory cannot be used on a route with transforms"
_FORWARDED: Final = (
    "a request whose body is not decoded to tensors cannot be used on a route with transforms"
)


@dataclass(frozen=True, slots=True)
class TransformLayer:
    """The layer that applies ``transforms``. ``offload`` runs long steps in helper processes, or is
    None if there are no helpers. ``labels`` and ``casts`` are settings of the route."""

    transforms: RouteTransforms
    limits: Limits
    offload: Offload | None
    labels: Mapping[str, Sequence[str]]
    casts: CastRules

    def __call__(self, inner: RouteInferences) -> TransformedRoute:
        return TransformedRoute(self, inner)

    def transform_metadata(self, model: ModelMetadata) -> ModelMetadata:
        return self.transforms.transform_metadata(model)


class TransformedRoute:
    """Runs inferences on ``inner`` and transforms their tensors with the steps of ``layer``."""

    def __init__(self, layer: TransformLayer, inner: RouteInferences) -> None:
        self._layer: Final = layer
        self._transforms: Final = layer.transforms
        self._inner: Final = inner

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        backend_request = await self._backend_request(request, context)
        with self._inner_datatypes(context):
            response = await self._inner.infer(backend_request, context)
        return await self._client_response(response, request, context)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        backend_request = await self._backend_request(request, context)
        async with aclosing(self._inner.stream(backend_request, context)) as responses:
            while True:
                try:
                    with self._inner_datatypes(context):
                        response = await anext(responses)
                except StopAsyncIteration:
                    return
                yield await self._client_response(response, request, context)

    @contextlib.contextmanager
    def _inner_datatypes(self, context: RequestContext) -> Generator[None]:
        """Allow every datatype in the backend's response, because a step may cast a datatype that
        the client's protocol does not support. The route's casts apply to the result of the
        steps."""
        unsupported = context.unsupported_datatypes
        context.unsupported_datatypes = frozenset()
        try:
            yield
        finally:
            context.unsupported_datatypes = unsupported

    async def _backend_request(
        self, request: InferRequest, context: RequestContext
    ) -> InferRequest:
        if uses_shared_memory(request):
            raise GatewayError(Kind.UNSUPPORTED, _NO_SHARED_MEMORY)
        if request.is_forwarded:
            raise GatewayError(Kind.UNSUPPORTED, _FORWARDED)
        transforms = self._transforms
        outputs = transforms.backend_outputs(request_values(request).outputs)
        inputs = await self._run(transforms.input_groups, request.inputs, context)
        return replace(request, inputs=inputs, outputs=outputs)

    async def _client_response(
        self, response: InferResponse, request: InferRequest, context: RequestContext
    ) -> InferResponse:
        requested = [output.name for output in request.outputs]
        outputs = response.outputs
        if outputs:
            transforms = self._transforms
            groups = transforms.requested_output_groups if requested else transforms.output_groups
            outputs = await self._run(groups, outputs, context)
        if requested:
            by_name = {tensor.name: tensor for tensor in outputs}
            outputs = tuple(by_name[name] for name in requested if name in by_name)
        model = None
        if requests_classes(request):
            model = ModelMetadata(request.model, max_batch_size=int(self._transforms.batch))
        response, layer = replace(response, outputs=outputs), self._layer
        return await fit_response(response, request, model, layer.casts, layer.labels, context)

    # ---- running the steps

    async def _run(
        self, groups: Sequence[StepGroup], tensors: tuple[Tensor, ...], context: RequestContext
    ) -> tuple[Tensor, ...]:
        for group in groups:
            before, step = tensors, group.steps[0]
            if isinstance(step, AsyncStep):
                tensors = await group.run_async(step, tensors, context)
                charge_tensors(tensors, (tensor.data for tensor in before), context.memory)
                continue
            sizes = await self._measure(group, tensors, context)
            self._check_size(sizes, group)
            if group.runs_inline(sizes):
                tensors = group.run(tensors)
            elif self._layer.offload is not None and sizes.is_interpreted:
                tensors = await self._layer.offload.run(
                    context.deadline,
                    group.run,
                    tensors,
                    client=client_key(context),
                    cost=sizes.total,
                    memory=context.memory,
                    size=sizes.total,
                )
            else:
                tensors = await _run_in_thread(
                    functools.partial(group.run, tensors), sizes.total, context
                )
            charge_tensors(tensors, (tensor.data for tensor in before), context.memory)
        return tensors

    async def _measure(
        self, group: StepGroup, tensors: tuple[Tensor, ...], context: RequestContext
    ) -> StepSizes:
        """Call ``group.measure``, in a thread for large images. Measuring decodes Base64, which
        takes memory."""
        size = data_bytes(tensors) if group.decodes_images else 0
        if size <= _MEASURED_INLINE_BYTES:
            return group.measure(tensors)
        context.memory.grow(size)
        try:
            return await asyncio.to_thread(group.measure, tensors)
        finally:
            context.memory.shrink(size)

    def _check_size(self, sizes: StepSizes, group: StepGroup) -> None:
        limit = self._layer.limits.body
        if sizes.result > limit:
            side = "inputs" if group.is_input else "outputs"
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the {side} would have up to {sizes.result} bytes after the route's transforms; "
                f"the limit is {limit}",
                limit="body",
            )


@functools.cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, "transforms")


async def _run_in_thread(
    run: Callable[[], tuple[Tensor, ...]], size: int, context: RequestContext
) -> tuple[Tensor, ...]:
    """Call ``run`` in a thread. ``size`` is the memory in bytes that ``run`` uses. If ``size``
    exceeds MIN_ACCOUNTED_BYTES, this memory stays charged until ``run`` returns, even if the
    request is cancelled. Raises TIMEOUT at the deadline."""
    account = None
    if size > MIN_ACCOUNTED_BYTES:
        context.memory.grow(size)
        account = context.memory.detach(size)
    future = _thread_pool().submit(run)
    if account is not None:
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _close_on(loop, account.close))
    try:
        async with asyncio.timeout_at(context.deadline):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise GatewayError(
            Kind.TIMEOUT, "the deadline passed before the tensors were transformed"
        ) from None


def _close_on(loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(close)
