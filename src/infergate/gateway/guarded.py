"""A gateway each of whose callers sees, and changes, what he is allowed.

*Strategy.* A frontend's gate refuses by what it peeks, before a message is read. Here the operation
itself is looked at, once it was read: what a message says in two places, it cannot say in two ways.

*Rule 1.* A call without a permit may ask for health, and for nothing else.
*Rule 2.* Lists leave out the models that are not the caller's to know of.
*Rule 3.* An ensemble is unloaded with the models that it consists of, which nobody here can name,
by who may unload all.
*Rule 4.* Tensors in shared memory are for those who may use shared memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from infergate.codecs.base import Peek
from infergate.core.call import Call, Permit
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    OPERATIONS,
    Answer,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelMetadataRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatus,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatus,
    SharedMemoryStatusRequest,
)
from infergate.core.repository import unloads_others
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.audit import denied
from infergate.gateway.bound import Bound
from infergate.gateway.frontend import Gate
from infergate.gateway.gateway import Gateway
from infergate.gateway.services import HEALTH, OwnServices, Unary
from infergate.gateway.shared_memory import in_shared_memory
from infergate.transport.base import StreamHandler

_HEALTH: Final = frozenset({ServerLiveRequest, ServerReadyRequest})


class GuardedGateway(Gateway):
    """See the module."""

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation``. Raises GatewayError."""
        permit = call.permit
        if permit is None:
            if type(operation) not in _HEALTH:
                raise _forbidden(operation)
            return await super().perform(operation, call)
        _check(operation, permit)
        if isinstance(operation, ModelUnloadRequest) and unloads_others(operation):
            _check_all(operation, permit, call)
        return _seen(await super().perform(operation, call), permit)

    def infer(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """``request`` along ``bound``, its route, which is noted on ``call``."""
        _check_inference(request, call)
        return super().infer(request, bound, call)

    async def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """All answers to ``request``, as they are pulled."""
        _check_inference(request, call)
        async with aclosing(super().stream(request, bound, call)) as answers:
            async for answer in answers:
                yield answer


def _forbidden(operation: Operation) -> GatewayError:
    named = OPERATIONS[type(operation)]
    return GatewayError(Kind.FORBIDDEN, f"{named} is not allowed to this client")


def _check(operation: Operation, permit: Permit) -> None:
    if not permit.allows(type(operation), getattr(operation, "model", "")):
        raise _forbidden(operation)


def _check_all(operation: ModelUnloadRequest, permit: Permit, call: Call) -> None:
    """Rule 3."""
    kind = type(operation)
    if not permit.allows(kind, ""):
        told = "unloading a model with those that it depends on is not allowed to this client"
        error = GatewayError(Kind.FORBIDDEN, told)
        denied(kind, call, error)
        raise error


def _check_inference(request: InferRequest, call: Call) -> None:
    permit = call.permit
    if permit is None:
        raise _forbidden(request)
    _check(request, permit)
    if in_shared_memory(request) and not permit.allows(SharedMemoryStatusRequest, ""):
        raise GatewayError(Kind.FORBIDDEN, "shared memory is not allowed to this client")


def _seen(answer: Answer, permit: Permit) -> Answer:
    """Rule 2."""
    match answer:
        case ModelIndex(models):
            known = [each for each in models if permit.allows(ModelMetadataRequest, each.name)]
            return ModelIndex(tuple(known))
        case ModelStatistics(models):
            return ModelStatistics(
                tuple(
                    each
                    for each in models
                    if permit.allows(ModelStatisticsRequest, str(each.get("name", "")))
                )
            )
        case ServerStatus():
            told = [_told(each, permit) for each in answer.models]
            return replace(answer, models=tuple(each for each in told if each is not None))
    return answer


def _told(status: ModelStatus, permit: Permit) -> ModelStatus | None:
    """``status``, with what was counted of the model if that is for the caller, too."""
    model = status.metadata.name
    if not permit.allows(ModelMetadataRequest, model):
        return None
    if permit.allows(ModelStatisticsRequest, model):
        return status
    return replace(status, statistics=())


Refuse = Callable[[GatewayError], RpcResponse]


def guarded_services(own: OwnServices, gate: Gate, refuse: Refuse) -> OwnServices:
    """``own`` services behind ``gate``: reflection as metadata, health as health. ``refuse`` tells
    an error as gRPC does."""
    return OwnServices(
        {method: _unary(serve, gate, refuse) for method, serve in own.unary.items()},
        {method: _stream(method, handler, gate) for method, handler in own.streams.items()},
    )


_HEALTH_ASKED: Final = Peek(ServerReadyRequest)
_METADATA_ASKED: Final = Peek(ServerMetadataRequest)


def _unary(serve: Unary, gate: Gate, refuse: Refuse) -> Unary:
    async def answer(wire: RpcRequest, call: Call) -> RpcResponse:
        try:
            await gate.admitted(_HEALTH_ASKED, call)
        except GatewayError as error:
            return refuse(error)
        return await serve(wire, call)

    return answer


def _stream(method: str, handler: StreamHandler, gate: Gate) -> StreamHandler:
    asked = _HEALTH_ASKED if method.startswith(f"/{HEALTH}/") else _METADATA_ASKED

    async def answer(messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
        await gate.admitted(asked, call)  # what it raises is told as gRPC does by the transport
        async for each in handler(_looked_at(messages, gate, asked, call), call):
            yield each

    return answer


async def _looked_at(
    messages: AsyncIterator[Buffer], gate: Gate, asked: Peek, call: Call
) -> AsyncIterator[Buffer]:
    """``messages``, each of which is asked for like any other request; the first is what its stream
    was let in for."""
    is_first = True
    async for message in messages:
        if not is_first:
            await gate.admitted(asked, call)
        is_first = False
        yield message
