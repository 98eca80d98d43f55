"""A gateway in which each client can use and see only what its permit allows.

The authorizer checks a request's summary before the message is parsed. This module checks the
parsed operation itself, so a message cannot say one thing in its summary and another in its body.

1. A call without a permit may use health operations only.
2. Lists omit models that the client may not know of.
3. An ensemble is unloaded together with the models it consists of, whose names the gateway does not
   know: that needs permission to unload every model.
4. Tensors in shared memory need permission to use shared memory.
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
    """A gateway that checks each operation against the client's permit."""

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
        """Run ``request`` on ``binding``, its route, if the client may."""
        _check_inference(request, call)
        return super().infer(request, bound, call)

    async def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` as they are pulled, if the client may run it."""
        _check_inference(request, call)
        async with aclosing(super().stream(request, bound, call)) as responses:
            async for response in responses:
                yield response


def _forbidden(operation: Operation) -> GatewayError:
    name = OPERATIONS[type(operation)]
    return GatewayError(Kind.FORBIDDEN, f"{name} is not allowed to this client")


def _check(operation: Operation, permit: Permit) -> None:
    if not permit.allows(type(operation), getattr(operation, "model", "")):
        raise _forbidden(operation)


def _check_all(operation: ModelUnloadRequest, permit: Permit, call: Call) -> None:
    """Enforce rule 3."""
    kind = type(operation)
    if not permit.allows(kind, ""):
        text = "unloading a model with those that it depends on is not allowed to this client"
        error = GatewayError(Kind.FORBIDDEN, text)
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
    """Apply rule 2 to ``response``."""
    match answer:
        case ModelIndex(models):
            visible = [model for model in models if permit.allows(ModelMetadataRequest, model.name)]
            return ModelIndex(tuple(visible))
        case ModelStatistics(models):
            return ModelStatistics(
                tuple(
                    model
                    for model in models
                    if permit.allows(ModelStatisticsRequest, str(model.get("name", "")))
                )
            )
        case ServerStatus():
            statuses = [_told(model, permit) for model in answer.models]
            return replace(answer, models=tuple(model for model in statuses if model is not None))
    return answer


def _told(status: ModelStatus, permit: Permit) -> ModelStatus | None:
    """Return ``status`` without the statistics that the client may not see; None if it may not see
    the model."""
    model = status.metadata.name
    if not permit.allows(ModelMetadataRequest, model):
        return None
    if permit.allows(ModelStatisticsRequest, model):
        return status
    return replace(status, statistics=())


Refuse = Callable[[GatewayError], RpcResponse]


def guarded_services(own: OwnServices, gate: Gate, refuse: Refuse) -> OwnServices:
    """Put ``authorizer`` in front of ``own`` services: reflection counts as metadata, health as
    health. ``build_error`` writes an error as a gRPC response."""
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
    summary = _HEALTH_ASKED if method.startswith(f"/{HEALTH}/") else _METADATA_ASKED

    async def answer(messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
        await gate.admitted(summary, call)  # the transport turns its error into a gRPC status
        async for response in handler(_looked_at(messages, gate, summary, call), call):
            yield response

    return answer


async def _looked_at(
    messages: AsyncIterator[Buffer], gate: Gate, asked: Peek, call: Call
) -> AsyncIterator[Buffer]:
    """Yield ``messages``, each authorized like any other request. The first one was authorized when
    the stream was opened."""
    is_first = True
    async for message in messages:
        if not is_first:
            await gate.admitted(asked, call)
        is_first = False
        yield message
