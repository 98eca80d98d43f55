"""The operations that every frontend calls, whatever its protocol.

*Strategy.* An operation on a model finds its route by name and version, is told in the backend's
names, performed, and answered in the client's names. An operation on the server asks the backends.
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
"""Extensions of V2 that the gateway carries. What a model does with them is its backend's."""
_NAME: Final = "infergate"
_STARTED: Final = time.monotonic_ns()
_ONLY_VERSION: Final = "1"
"""Of a model that has no version, or none that is a number, in statistics."""
CAST_ON_LOOP: Final = 2 * MIB
CLASSES_ON_LOOP: Final = 64 * KIB
"""Bytes of tensors that the event loop casts, and finds classes in, in 15 ms."""
T = TypeVar("T")


class Gateway:
    """Routes operations to backends.

    ``declared`` is metadata that the operator wrote down, by the client's model name; it stands
    for what the backend would say. ``combine`` makes one readiness of all backends': ``all``
    (strict) or ``any`` (lenient). ``memory`` is what clients share; None: nothing. ``allowed`` are
    the operations that change state. ``figures`` are to be told of every finished request. They and
    the readiness are those of the gateway ``before`` this one, if there was one. ``counted`` tells
    what they and those of other processes that serve the same have counted of a model, as of a
    version; None: there are no others.
    """

    def __init__(  # noqa: PLR0913 - what is switched on stands beside what is routed
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
        """``tally`` gives what is counted of a route, by its label."""
        self.backends: Final = tuple(backends.values())
        self.declared: Final = declared
        self.memory: Final = memory or SharedMemory(DEFAULT_LIMITS, on=False)
        self._extensions: Final = (*EXTENSIONS, *allowed.extensions, *self.memory.extensions)
        self._control: Final = Control(allowed, self)
        self.bound: Final = tuple(Bound(r, backends[r.backend]) for r in table.routes)
        self._table: Final = table
        self.names: Final = table.names
        self._of: Final = {id(bound.route): bound for bound in self.bound}
        self.branches: Final[Mapping[Bound, Branches]] = {
            bound: Branches(bound, backends, tally(bound.label), self)
            for bound in self.bound
            if bound.route.branches
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
        """Serve from now on, in the place of the gateway before this one."""
        self.figures.name(self._named)
        self.readiness.turn_to(self._is_ready)

    async def close(self) -> None:
        """Give up the copies that are under way."""
        await asyncio.gather(*(each.close() for each in self.branches.values()))

    def route_of(self, model: str, version: str, headers: Mapping[str, str]) -> str:
        """What logs call the route that a request takes; empty where there is none."""
        route = self._table.find(model, version, headers)
        return "" if route is None else route.label

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """The route of ``model`` and its backend, noted on ``call``. Raises NOT_FOUND."""
        route = self._table.find(model, version, call.headers)
        if route is None:
            there = self._table.candidates(model)
            if any(each.version in ("", version) for each in there):
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for requests with such headers"
                )
            if there:
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for version '{version}'"
                )
            raise GatewayError(Kind.NOT_FOUND, f"no route for model '{model}'")
        bound = self._of[id(route)]
        bound.note(call)
        return bound

    def bind_any(self, model: str, call: Call) -> Bound:
        """The first route of ``model``, whatever version it is for. Raises NOT_FOUND."""
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
                bound = self.bind(operation.model, operation.version, call)
                return _told(await self._metadata(operation, bound, call), bound, call)
            case InferRequest():
                return await self.infer(
                    operation, self.bind(operation.model, operation.version, call), call
                )
            case ModelReadyRequest():
                bound = self.bind(operation.model, operation.version, call)
                return await self._carried(operation, bound, call)
            case _:
                return await self._extended(operation, call)

    async def _extended(self, operation: Operation, call: Call) -> Answer:
        """What extensions of V2 ask for."""
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
        """``request`` along ``bound``, its route, which is noted on ``call``."""
        branches = self.branches.get(bound)
        if branches is not None:
            return branches.infer(request, call)
        return self.along(request, bound, call)

    def along(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """``infer`` that goes nowhere else."""
        return (self._lent if in_shared_memory(request) else self._infer)(request, bound, call)

    async def _lent(self, request: InferRequest, bound: Bound, call: Call) -> InferResponse:
        by_name = not bound.route.cast
        async with self.memory.lent(request, bound.backend, by_name=by_name) as loan:
            return await loan.delivered(await self._infer(loan.request, bound, call))

    async def _infer(self, request: InferRequest, bound: Bound, call: Call) -> InferResponse:
        theirs, model = await self._prepared(request, bound, call)
        answer = await bound.backend.perform(theirs, call)
        ours = to_client(answer, request, bound.route)
        assert isinstance(ours, InferResponse)
        if model is None and not call.lacks:
            return ours
        return await _fitted(ours, request, model, bound, call)

    def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """All answers to ``request``, as they are pulled, along ``bound``, its route, which is
        noted on ``call``. Raises GatewayError."""
        branches = self.branches.get(bound)
        if branches is not None:
            return branches.stream(request, call)
        return self.stream_along(request, bound, call)

    async def stream_along(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """``stream`` that goes nowhere else."""
        if not in_shared_memory(request):
            async with aclosing(self._stream(request, bound, call)) as answers:
                async for answer in answers:
                    yield answer
            return
        by_name = not bound.route.cast
        async with (
            self.memory.lent(request, bound.backend, by_name=by_name) as loan,
            aclosing(self._stream(loan.request, bound, call)) as answers,
        ):
            async for answer in answers:
                yield await loan.delivered(answer)

    async def _stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        theirs, model = await self._prepared(request, bound, call)
        async with aclosing(bound.backend.stream(theirs, call)) as answers:
            async for answer in answers:
                ours = to_client(answer, request, bound.route)
                assert isinstance(ours, InferResponse)
                yield await _fitted(ours, request, model, bound, call)
                if bound.route.idle_timeout is not None:
                    call.timeout = bound.route.idle_timeout
                call.renew()

    async def _prepared(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> tuple[InferRequest, ModelMetadata | None]:
        """``request`` as the backend is asked it; and the model's metadata, where classes that it
        asks for are to be made of the answer's values."""
        if bound.route.cast and call.lacks:
            request = await self._cast_back(request, bound, call)
        model = None
        if asks_for_classes(request) and not await bound.backend.classifies(call):
            model = await self._described(request.model, request.version, bound, call)
            request = asking_values(request)
        self._check(request, bound, call)
        if bound.lacks:
            request = await _carried(request, bound, call)
        theirs = to_backend(request, bound.route)
        assert isinstance(theirs, InferRequest)
        return theirs, model

    async def _cast_back(self, request: InferRequest, bound: Bound, call: Call) -> InferRequest:
        """``request`` with its inputs as the model wants them, where they stand for what the
        client's protocol lacks."""
        casts = cast.concerning(call.lacks - bound.lacks, bound.route.cast)
        if not cast.may_stand_for(request.inputs, casts):
            return request
        model = await self._described(request.model, request.version, bound, call)
        given = request.inputs
        inputs = await _threaded(given, CAST_ON_LOOP, cast.cast_back, given, model, casts)
        count_tensors(inputs, (each.data for each in request.inputs), call.memory)
        return replace(request, inputs=inputs)

    def _check(self, request: InferRequest, bound: Bound, call: Call) -> None:
        """Note what is declared of the model. Raises UNSUPPORTED for a sequence that the
        backend's protocol does not know."""
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
        answer = await self._carried(operation, bound, call)
        assert isinstance(answer, ModelMetadata)
        return answer

    async def configuration(self, operation: ModelConfigRequest, call: Call) -> ModelConfig:
        """The server's own configuration, or what the metadata tells of it."""
        model, version = operation.model, operation.version
        bound = self.bind(model, version, call)
        if model not in self.declared and (await bound.backend.kind(call)).tells_config:
            answer = await self._carried(operation, bound, call)
            assert isinstance(answer, ModelConfig)
            return answer
        described = await self._described(model, version, bound, call)
        return config_of(_told(described, bound, call))

    async def statistics(self, operation: ModelStatisticsRequest, call: Call) -> ModelStatistics:
        """What the servers of a model have counted, together, or what the gateway has."""
        bound = self.bind(operation.model, operation.version, call)
        if not (await bound.backend.kind(call)).tells_statistics:
            version = await self._counted_version(operation, bound, call)
            if self._counted is not None:
                return await self._counted(operation.model, version)
            return self.figures.of(operation.model, version)
        theirs = to_backend(operation, bound.route)
        answers = await bound.backend.everywhere(theirs, call)
        told = together([each for each in answers if isinstance(each, ModelStatistics)])
        answer = to_client(told, operation, bound.route)
        assert isinstance(answer, ModelStatistics)
        return answer

    async def _counted_version(
        self, operation: ModelStatisticsRequest, bound: Bound, call: Call
    ) -> str:
        """The version that the gateway's figures are told of: the one asked for, else the model's
        latest that is a number, else 1: perf_analyzer reads no other versions. Raises NOT_FOUND
        for a model that is not there."""
        try:
            model = await self._described(operation.model, operation.version, bound, call)
        except GatewayError as error:
            if error.kind is Kind.NOT_FOUND:
                raise
            return (
                operation.version or _ONLY_VERSION
            )  # a server that is down has been counted all the same
        numbers = [each for each in model.versions if is_number(each)]
        return operation.version or max(numbers, key=int, default=_ONLY_VERSION)

    async def _carried(self, operation: ModelOperation, bound: Bound, call: Call) -> Answer:
        answer = await bound.backend.perform(to_backend(operation, bound.route), call)
        return to_client(answer, operation, bound.route)

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """The metadata of a model in the client's names, as it was in the last minute; ``newer``:
        in the last second. Its route is noted on ``call``. Raises GatewayError."""
        bound = self.bind(model, version, call)
        return _told(await self._described(model, version, bound, call, newer=newer), bound, call)

    async def _described(
        self, model: str, version: str, bound: Bound, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        declared = self.declared.get(model)
        if declared is not None:
            return declared if declared.name == model else replace(declared, name=model)
        asked_for = ModelMetadataRequest(model, version)
        theirs = to_backend(asked_for, bound.route)
        told = await bound.backend.describe(theirs.model, theirs.version, call, newer=newer)
        described = to_client(told, asked_for, bound.route)
        assert isinstance(described, ModelMetadata)
        return described

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
        """The status of the only server there is, if that has one: what it says of itself holds for
        the gateway in front of it."""
        backends = {id(bound.backend): bound.backend for bound in self.bound}
        if len(backends) != 1:
            return None
        (backend,) = backends.values()
        name = self.bind_any(model, replace(call)).route.backend_model(model) if model else ""
        return await asked(backend, ServerStatusRequest(name), call)

    async def _is_ready(self, call: Call) -> bool:
        """Whether the backends, taken together, can serve. One that only gets copies need not."""
        answers = (
            _is_ready(each, call) for each in self.backends if each.name not in self._unheard
        )
        return self._combine(await asyncio.gather(*answers))


async def _is_ready(backend: Backend, call: Call) -> bool:
    """Whether ``backend`` can serve: as its checks say, where it has any, else as it says."""
    known = backend.ready if isinstance(backend, Watched) else None
    return await asked(backend, ServerReadyRequest(), call) == READY if known is None else known


async def _carried(request: InferRequest, bound: Bound, call: Call) -> InferRequest:
    """``request`` with datatypes that the backend's protocol carries. Raises UNSUPPORTED for what
    it cannot carry."""
    given, casts, protocol = request.inputs, bound.route.cast, bound.backend.protocol
    fitting = await _threaded(
        given, CAST_ON_LOOP, cast.carried, given, bound.lacks, casts, "input", protocol
    )
    if fitting is given:
        return request
    count_tensors(fitting, (each.data for each in given), call.memory)
    return replace(request, inputs=fitting)


async def _threaded(
    tensors: Sequence[Tensor], most: int, how: Callable[..., T], *arguments: Any
) -> T:
    """``how(*arguments)``, numpy's work on ``tensors``, in a thread where they have over ``most``
    bytes: numpy lets the event loop run meanwhile."""
    if sum(len(each.data) for each in tensors) > most:
        return await asyncio.to_thread(how, *arguments)
    return how(*arguments)


async def _fitted(
    ours: InferResponse,
    request: InferRequest,
    model: ModelMetadata | None,
    bound: Bound,
    call: Call,
) -> InferResponse:
    """``ours``, the answer to ``request``, in the datatypes that the client's protocol carries;
    ``model`` as :meth:`Gateway._prepared` gave it."""
    given, casts = ours.outputs, bound.route.cast
    if call.lacks:
        fitting = await _threaded(
            given, CAST_ON_LOOP, cast.carried, given, call.lacks, casts, "output", call.protocol
        )
        if fitting is not ours.outputs:
            count_tensors(fitting, (each.data for each in ours.outputs), call.memory)
            ours = replace(ours, outputs=fitting)
    if model is None:
        return ours
    labels = bound.route.labels
    return await _threaded(
        ours.outputs, CLASSES_ON_LOOP, with_classes, ours, request, model, labels
    )


def _told(model: ModelMetadata, bound: Bound, call: Call) -> ModelMetadata:
    """``model`` as a client is told it."""
    if not (bound.route.cast and call.lacks):
        return model
    return cast.told(model, cast.concerning(call.lacks, bound.route.cast))
