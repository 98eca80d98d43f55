"""The operations that every frontend calls, whatever its protocol.

An operation on a model finds its route by name and version, is renamed for the backend, performed,
and its response is renamed for the client. An operation on the server queries the backends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, TypeVar

from infergate import __version__
from infergate.backends.base import Backend, Watched
from infergate.core.accounting import count_tensors
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB
from infergate.core.messages import (
    Answer,
    Health,
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelOperation,
    ModelReadyRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatus,
    Operation,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatus,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.sequences import PARAMETER as SEQUENCE
from infergate.core.sequences import sequence_of
from infergate.core.tally import RouteTally
from infergate.core.tensor import OpaqueParameters, Tensor
from infergate.gateway import cast
from infergate.gateway.bound import Bound
from infergate.gateway.branches import Branches
from infergate.gateway.catalogue import READY, Catalogue, asked
from infergate.gateway.classes import asking_values, asks_for_classes, with_classes
from infergate.gateway.configuration import config_of, is_number
from infergate.gateway.control import NOTHING, Allowed, Control
from infergate.gateway.readiness import Readiness
from infergate.gateway.rename import metadata_to_backend, to_backend, to_client
from infergate.gateway.shared_memory import SharedMemory, in_shared_memory
from infergate.gateway.statistics import Figures, together
from infergate.routing.table import RouteTable, unheard

__all__ = ["Bound", "Gateway"]
EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "parameters",
    "sequence",
    "statistics",
)
"""Extensions of V2 that the gateway carries. Whether a model supports them is up to its backend."""
_NAME: Final = "infergate"
_STARTED: Final = time.monotonic_ns()
_ONLY_VERSION: Final = "1"
"""The version in statistics of a model that has no version, or none that is a number."""
CAST_ON_LOOP: Final = 2 * MIB
CLASSES_ON_LOOP: Final = 64 * KIB
"""Bytes of tensors that the event loop casts, or classifies, within 15 ms."""
T = TypeVar("T")


class Gateway:
    """Routes operations to backends."""

    def __init__(  # noqa: PLR0913 - one parameter for each configured part
        self,
        table: RouteTable,
        backends: Mapping[str, Backend],
        declared: Mapping[str, ModelMetadata],
        combine: Callable[[Sequence[bool]], bool] = all,
        memory: SharedMemory | None = None,
        *,
        allowed: Allowed = NOTHING,
        before: Gateway | None = None,
        tally: Callable[[str], RouteTally] = lambda _: RouteTally(),
        counted: Callable[[str, str], Awaitable[ModelStatistics]] | None = None,
    ) -> None:
        """``declared`` is metadata from the configuration, by the client's model name; it replaces
        the backend's. ``combine`` reduces the readiness of all backends to one: ``all`` (strict) or
        ``any`` (lenient). ``permissions`` are the operations on servers that are switched on. The
        statistics and the readiness of ``predecessor``, the gateway of the previous configuration,
        continue. ``counters_of`` returns the counters of a route by its label.
        ``aggregate_statistics`` returns those of a model, reported for a version, of all worker
        processes; None if there is only this one."""
        self.backends: Final = tuple(backends.values())
        self.declared: Final = declared
        self.memory: Final = memory or SharedMemory(DEFAULT_LIMITS, on=False)
        self._extensions: Final = (*EXTENSIONS, *allowed.extensions, *self.memory.extensions)
        self._control: Final = Control(allowed, self)
        self.bound: Final = tuple(Bound(r, backends[r.backend]) for r in table.routes)
        self._table: Final = table
        self.names: Final = table.names
        self._of: Final = {id(binding.route): binding for binding in self.bound}
        self.branches: Final[Mapping[Bound, Branches]] = {
            binding: Branches(binding, backends, tally(binding.label), self)
            for binding in self.bound
            if binding.route.branches
        }
        self._unheard: Final = unheard(table.routes)
        self._combine: Final = combine
        self._catalogue: Final = Catalogue(table, self.bound, self)
        exact = (route.pattern for route in table.routes if route.is_exact)
        self._named: Final = frozenset((*exact, *declared))
        self._counted: Final = counted
        self.figures: Final[Figures] = before.figures if before else Figures(self._named)
        self.readiness: Final[Readiness] = before.readiness if before else Readiness(self._is_ready)

    def take_over(self) -> None:
        """Start to serve in place of the predecessor."""
        self.figures.name(self._named)
        self.readiness.turn_to(self._is_ready)

    async def close(self) -> None:
        """Cancel the mirrored requests in progress."""
        await asyncio.gather(*(split.close() for split in self.branches.values()))

    def route_of(self, model: str, version: str, headers: Mapping[str, str]) -> str:
        """Return the label of the route that a request takes; empty if there is none."""
        route = self._table.find(model, version, headers)
        return "" if route is None else route.label

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """Return the route of ``model`` and note it on ``call``. Raises NOT_FOUND."""
        route = self._table.find(model, version, call.headers)
        if route is None:
            candidates = self._table.candidates(model)
            if any(candidate.version in ("", version) for candidate in candidates):
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for requests with such headers"
                )
            if candidates:
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for version '{version}'"
                )
            raise GatewayError(Kind.NOT_FOUND, f"no route for model '{model}'")
        binding = self._of[id(route)]
        binding.note(call)
        return binding

    def bind_any(self, model: str, call: Call) -> Bound:
        """Return the first route of ``model``, whatever its version. Raises NOT_FOUND."""
        first = next(iter(self._table.candidates(model)), None)
        return self.bind(model, first.version if first else "", call)

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation``. Raises GatewayError."""
        match operation:
            case ServerLiveRequest():
                return Health(ok=True)
            case ServerReadyRequest():
                return Health(ok=await self.readiness.ready())
            case ServerMetadataRequest():
                return ServerMetadata(_NAME, __version__, self._extensions)
            case ModelIndexRequest():
                return await self._catalogue.index(operation, call)
            case ServerStatusRequest(model):
                return await self._status(model, call)
            case ModelMetadataRequest():
                binding = self.bind(operation.model, operation.version, call)
                return _told(await self._metadata(operation, binding, call), binding, call)
            case InferRequest():
                return await self.infer(
                    operation, self.bind(operation.model, operation.version, call), call
                )
            case ModelReadyRequest():
                binding = self.bind(operation.model, operation.version, call)
                return await self._carried(operation, binding, call)
            case _:
                return await self._extended(operation, call)

    async def _extended(self, operation: Operation, call: Call) -> Answer:
        match operation:
            case ModelConfigRequest():
                return await self.configuration(operation, call)
            case ModelStatisticsRequest(""):
                return await self._catalogue.statistics(call)
            case ModelStatisticsRequest():
                return await self.statistics(operation, call)
            case (
                SharedMemoryStatusRequest()
                | SharedMemoryRegisterRequest()
                | SharedMemoryUnregisterRequest()
            ):
                return await self.memory.perform(operation, call)
            case _:
                return await self._control.perform(operation, call)

    def infer(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """Run ``request`` on ``binding``, its route, or one of the route's other targets."""
        split = self.branches.get(bound)
        if split is not None:
            return split.infer(request, call)
        return self.along(request, bound, call)

    def along(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """Run ``request`` on ``binding`` and nowhere else."""
        return (self._lent if in_shared_memory(request) else self._infer)(request, bound, call)

    async def _lent(self, request: InferRequest, bound: Bound, call: Call) -> InferResponse:
        by_name = not bound.route.cast
        async with self.memory.lent(request, bound.backend, by_name=by_name) as staged:
            return await staged.delivered(await self._infer(staged.request, bound, call))

    async def _infer(self, request: InferRequest, bound: Bound, call: Call) -> InferResponse:
        backend_request, model = await self._prepared(request, bound, call)
        backend_response = await bound.backend.perform(backend_request, call)
        response = to_client(backend_response, request, bound.route)
        assert isinstance(response, InferResponse)
        if model is None and not call.lacks:
            return response
        return await _fitted(response, request, model, bound, call)

    def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``, as they are pulled, from ``binding``, its route, or
        one of the route's other targets. Raises GatewayError."""
        split = self.branches.get(bound)
        if split is not None:
            return split.stream(request, call)
        return self.stream_along(request, bound, call)

    async def stream_along(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses from ``binding`` and nowhere else."""
        if not in_shared_memory(request):
            async with aclosing(self._stream(request, bound, call)) as responses:
                async for response in responses:
                    yield response
            return
        by_name = not bound.route.cast
        async with (
            self.memory.lent(request, bound.backend, by_name=by_name) as staged,
            aclosing(self._stream(staged.request, bound, call)) as responses,
        ):
            async for response in responses:
                yield await staged.delivered(response)

    async def _stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        backend_request, model = await self._prepared(request, bound, call)
        async with aclosing(bound.backend.stream(backend_request, call)) as backend_responses:
            async for backend_response in backend_responses:
                response = to_client(backend_response, request, bound.route)
                assert isinstance(response, InferResponse)
                yield await _fitted(response, request, model, bound, call)
                if bound.route.idle_timeout is not None:
                    call.timeout = bound.route.idle_timeout
                call.renew()

    async def _prepared(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> tuple[InferRequest, ModelMetadata | None]:
        """Return ``request`` as it is sent to the backend; and the model's metadata if the gateway
        is to make the requested classes from the response's values, else None."""
        if bound.route.cast and call.lacks:
            request = await self._cast_back(request, bound, call)
        model = None
        if asks_for_classes(request) and not await bound.backend.classifies(call):
            model = await self._described(request.model, request.version, bound, call)
            request = asking_values(request)
        self._check(request, bound, call)
        if bound.lacks:
            request = await _carried(request, bound, call)
        backend_request = to_backend(request, bound.route)
        assert isinstance(backend_request, InferRequest)
        return backend_request, model

    async def _cast_back(self, request: InferRequest, bound: Bound, call: Call) -> InferRequest:
        """Cast back the inputs that hold a substitute for what the client's protocol lacks."""
        casts = cast.concerning(call.lacks - bound.lacks, bound.route.cast)
        if not cast.may_stand_for(request.inputs, casts):
            return request
        model = await self._described(request.model, request.version, bound, call)
        original = request.inputs
        inputs = await _threaded(original, CAST_ON_LOOP, cast.cast_back, original, model, casts)
        count_tensors(inputs, (tensor.data for tensor in request.inputs), call.memory)
        return replace(request, inputs=inputs)

    def _check(self, request: InferRequest, bound: Bound, call: Call) -> None:
        """Note the model's declared metadata on ``call``. Raises UNSUPPORTED for a sequence if the
        backend's protocol has none."""
        parameters = request.parameters
        if (
            not (
                isinstance(parameters, OpaqueParameters)
                and parameters.passes_to(bound.backend.protocol)
            )
            and not bound.backend.sequences
            and sequence_of(request) is not None
        ):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"parameter '{SEQUENCE}': backend '{bound.backend.name}' speaks "
                f"{bound.backend.protocol}, which has no sequences",
            )
        declared = self.declared.get(request.model)
        call.declared = declared and metadata_to_backend(declared, request, bound.route)

    async def _metadata(
        self, operation: ModelMetadataRequest, bound: Bound, call: Call
    ) -> ModelMetadata:
        declared = self.declared.get(operation.model)
        if declared is not None:
            return replace(declared, name=operation.model)
        metadata = await self._carried(operation, bound, call)
        assert isinstance(metadata, ModelMetadata)
        return metadata

    async def configuration(self, operation: ModelConfigRequest, call: Call) -> ModelConfig:
        """Return the server's own configuration of a model, or one derived from the metadata."""
        model, version = operation.model, operation.version
        binding = self.bind(model, version, call)
        if model not in self.declared and (await binding.backend.kind(call)).tells_config:
            config = await self._carried(operation, binding, call)
            assert isinstance(config, ModelConfig)
            return config
        metadata = await self._described(model, version, binding, call)
        return config_of(_told(metadata, binding, call))

    async def statistics(self, operation: ModelStatisticsRequest, call: Call) -> ModelStatistics:
        """Return the merged statistics of a model's servers, else the gateway's own."""
        binding = self.bind(operation.model, operation.version, call)
        if not (await binding.backend.kind(call)).tells_statistics:
            version = await self._counted_version(operation, binding, call)
            if self._counted is not None:
                return await self._counted(operation.model, version)
            return self.figures.of(operation.model, version)
        backend_request = to_backend(operation, binding.route)
        responses = await binding.backend.everywhere(backend_request, call)
        merged = together(
            [response for response in responses if isinstance(response, ModelStatistics)]
        )
        statistics = to_client(merged, operation, binding.route)
        assert isinstance(statistics, ModelStatistics)
        return statistics

    async def _counted_version(
        self, operation: ModelStatisticsRequest, bound: Bound, call: Call
    ) -> str:
        """Return the version to report the gateway's own statistics for: the requested one, else
        the latest numeric one (perf_analyzer reads no others), else 1. Raises NOT_FOUND."""
        try:
            model = await self._described(operation.model, operation.version, bound, call)
        except GatewayError as error:
            if error.kind is Kind.NOT_FOUND:
                raise
            return operation.version or _ONLY_VERSION  # the gateway has statistics of it anyway
        numeric = [version for version in model.versions if is_number(version)]
        return operation.version or max(numeric, key=int, default=_ONLY_VERSION)

    async def _carried(self, operation: ModelOperation, bound: Bound, call: Call) -> Answer:
        response = await bound.backend.perform(to_backend(operation, bound.route), call)
        return to_client(response, operation, bound.route)

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """Return the metadata of a model in the client's names, at most a minute old, or a second
        if ``newer``. Its route is noted on ``call``. Raises GatewayError."""
        binding = self.bind(model, version, call)
        return _told(
            await self._described(model, version, binding, call, newer=newer), binding, call
        )

    async def _described(
        self, model: str, version: str, bound: Bound, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        declared = self.declared.get(model)
        if declared is not None:
            return declared if declared.name == model else replace(declared, name=model)
        request = ModelMetadataRequest(model, version)
        backend_request = to_backend(request, bound.route)
        backend_metadata = await bound.backend.describe(
            backend_request.model, backend_request.version, call, newer=newer
        )
        metadata = to_client(backend_metadata, request, bound.route)
        assert isinstance(metadata, ModelMetadata)
        return metadata

    async def _status(self, model: str, call: Call) -> ServerStatus:
        if model:
            models: tuple[ModelStatus, ...] = (await self._catalogue.status(model, call),)
        else:
            models = await self._catalogue.statuses(call)
        server = await self._only_server(model, call)
        version, uptime = __version__, time.monotonic_ns() - _STARTED
        if isinstance(server, ServerStatus):
            version, uptime = server.version or version, server.uptime_ns or uptime
        return ServerStatus(_NAME, version, await self.readiness.ready(), models, uptime)

    async def _only_server(self, model: str, call: Call) -> Answer | None:
        """Return the status of the only backend, if there is just one and it has a status."""
        backends = {id(binding.backend): binding.backend for binding in self.bound}
        if len(backends) != 1:
            return None
        (backend,) = backends.values()
        name = self.bind_any(model, replace(call)).route.backend_model(model) if model else ""
        return await asked(backend, ServerStatusRequest(name), call)

    async def _is_ready(self, call: Call) -> bool:
        """Return whether the backends can serve, without those that only get mirrored requests."""
        checks = (
            _is_ready(backend, call)
            for backend in self.backends
            if backend.name not in self._unheard
        )
        return self._combine(await asyncio.gather(*checks))


async def _is_ready(backend: Backend, call: Call) -> bool:
    """Return the result of the backend's health checks, or query it if there are none."""
    checked = backend.ready if isinstance(backend, Watched) else None
    return await asked(backend, ServerReadyRequest(), call) == READY if checked is None else checked


async def _carried(request: InferRequest, bound: Bound, call: Call) -> InferRequest:
    """Return ``request`` in datatypes that the backend's protocol carries. Raises UNSUPPORTED."""
    inputs, casts, protocol = request.inputs, bound.route.cast, bound.backend.protocol
    cast_inputs = await _threaded(
        inputs, CAST_ON_LOOP, cast.carried, inputs, bound.lacks, casts, "input", protocol
    )
    if cast_inputs is inputs:
        return request
    count_tensors(cast_inputs, (tensor.data for tensor in inputs), call.memory)
    return replace(request, inputs=cast_inputs)


async def _threaded(
    tensors: Sequence[Tensor], most: int, how: Callable[..., T], *arguments: Any
) -> T:
    """Run ``function``, numpy's work on ``tensors``, in a thread if they have over ``max_bytes``
    bytes: numpy releases the interpreter lock meanwhile."""
    if sum(len(tensor.data) for tensor in tensors) > most:
        return await asyncio.to_thread(how, *arguments)
    return how(*arguments)


async def _fitted(
    ours: InferResponse,
    request: InferRequest,
    model: ModelMetadata | None,
    bound: Bound,
    call: Call,
) -> InferResponse:
    """Return ``response`` in datatypes that the client's protocol can carry, with the requested
    classes if ``model`` is given (see ``_prepare_request``)."""
    outputs, casts = ours.outputs, bound.route.cast
    if call.lacks:
        cast_outputs = await _threaded(
            outputs, CAST_ON_LOOP, cast.carried, outputs, call.lacks, casts, "output", call.protocol
        )
        if cast_outputs is not ours.outputs:
            count_tensors(cast_outputs, (tensor.data for tensor in ours.outputs), call.memory)
            ours = replace(ours, outputs=cast_outputs)
    if model is None:
        return ours
    labels = bound.route.labels
    return await _threaded(
        ours.outputs, CLASSES_ON_LOOP, with_classes, ours, request, model, labels
    )


def _told(model: ModelMetadata, bound: Bound, call: Call) -> ModelMetadata:
    """Return ``model`` with the datatypes that the client sees."""
    if not (bound.route.cast and call.lacks):
        return model
    return cast.told(model, cast.concerning(call.lacks, bound.route.cast))
