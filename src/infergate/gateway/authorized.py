"""A gateway that limits each client to the models and operations that the client's permit allows.

The authorizer checks a request's summary before the message is parsed. This module checks the
parsed operation, because a message may differ from its summary.

1. A client without a permit can only query the liveness and readiness of the server.
2. Lists omit models and statistics that the client is not permitted to see.
3. To unload an ensemble together with its models, the client needs permission to unload every
   model, because the gateway does not know the names of the ensemble's models.
4. A request with tensors in shared memory requires permission to use shared memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final

from infergate.codecs.base import RequestSummary
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    OPERATION_NAMES,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelMetadataRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatus,
    ModelUnloadRequest,
    Operation,
    Response,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatus,
    SharedMemoryStatusRequest,
)
from infergate.core.repository import unloads_dependents
from infergate.core.request_context import Permit, RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.audit import log_denied
from infergate.gateway.frontend import RequestAuthorizer
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.services import HEALTH_SERVICE, GatewayServices, UnaryHandler
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.transport.base import StreamHandler

_HEALTH_OPERATIONS: Final = frozenset({ServerLiveRequest, ServerReadyRequest})


class AuthorizedGateway:
    """Checks each operation against the client's permit before ``inner`` performs it."""

    def __init__(self, inner: InferenceGateway) -> None:
        self._inner: Final = inner
        self.name_rule: Final = inner.name_rule
        self.bind: Final = inner.bind
        self.find_binding: Final = inner.find_binding
        self.depends_on_headers: Final = inner.depends_on_headers
        self.can_relay: Final = inner.can_relay
        self.relay_plan: Final = inner.relay_plan
        self.known_metadata: Final = inner.known_metadata
        self.describe: Final = inner.describe

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        permit = context.permit
        if permit is None:
            if type(operation) not in _HEALTH_OPERATIONS:
                raise _forbidden_error(operation)
            return await self._inner.perform(operation, context)
        _check_operation(operation, permit)
        if (
            isinstance(operation, ModelUnloadRequest)
            and unloads_dependents(operation)
            and not permit.allows(ModelUnloadRequest, "")  # rule 3
        ):
            text = "unloading a model with its dependents is not permitted for this client"
            error = GatewayError(Kind.FORBIDDEN, text)
            log_denied(ModelUnloadRequest, context, error)
            raise error
        return _visible_part(await self._inner.perform(operation, context), permit)

    def check_inference(self, request: InferRequest, context: RequestContext) -> None:
        """Raise FORBIDDEN if the client is not permitted to run ``request``."""
        if context.permit is None:
            raise _forbidden_error(request)
        _check_operation(request, context.permit)

    def infer(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext
    ) -> Awaitable[InferResponse]:
        self.check_inference(request, context)
        return self._inner.infer(request, binding, context)

    def stream(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self.check_inference(request, context)
        return self._inner.stream(request, binding, context)


def _forbidden_error(operation: Operation) -> GatewayError:
    name = OPERATION_NAMES[type(operation)]
    return GatewayError(Kind.FORBIDDEN, f"{name} is not permitted for this client")


def _check_operation(operation: Operation, permit: Permit) -> None:
    if not permit.allows(type(operation), getattr(operation, "model", "")):
        raise _forbidden_error(operation)
    if (
        isinstance(operation, InferRequest)
        and uses_shared_memory(operation)
        and not permit.allows(SharedMemoryStatusRequest, "")
    ):
        raise GatewayError(Kind.FORBIDDEN, "shared memory is not permitted for this client")


def _visible_part(response: Response, permit: Permit) -> Response:
    """Return ``response`` without the models and statistics that ``permit`` hides (rule 2)."""
    match response:
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
            statuses = [_visible_status(model, permit) for model in response.models]
            return replace(response, models=tuple(model for model in statuses if model is not None))
    return response


def _visible_status(status: ModelStatus, permit: Permit) -> ModelStatus | None:
    """Return ``status`` without statistics that ``permit`` hides, or None if ``permit`` hides the
    model."""
    model = status.metadata.name
    if not permit.allows(ModelMetadataRequest, model):
        return None
    if permit.allows(ModelStatisticsRequest, model):
        return status
    return replace(status, statistics=())


BuildRpcError = Callable[[GatewayError], RpcResponse]


def authorized_services(
    own: GatewayServices, authorizer: RequestAuthorizer, build_error: BuildRpcError
) -> GatewayServices:
    """Return the services ``own``, with each call authorized by ``authorizer``. Reflection requires
    permission to read the server's metadata, and health checks require permission for health
    operations. ``build_error`` converts an error to a gRPC response."""
    return GatewayServices(
        {
            method: _authorized_unary(serve, authorizer, build_error)
            for method, serve in own.unary.items()
        },
        {
            method: _authorized_stream(method, handler, authorizer)
            for method, handler in own.streams.items()
        },
    )


_HEALTH_SUMMARY: Final = RequestSummary(ServerReadyRequest)
_METADATA_SUMMARY: Final = RequestSummary(ServerMetadataRequest)


def _authorized_unary(
    serve: UnaryHandler, authorizer: RequestAuthorizer, build_error: BuildRpcError
) -> UnaryHandler:
    async def authorized_handler(wire: RpcRequest, context: RequestContext) -> RpcResponse:
        try:
            await authorizer.authorize(_HEALTH_SUMMARY, context)
        except GatewayError as error:
            return build_error(error)
        return await serve(wire, context)

    return authorized_handler


def _authorized_stream(
    method: str, handler: StreamHandler, authorizer: RequestAuthorizer
) -> StreamHandler:
    summary = _HEALTH_SUMMARY if method.startswith(f"/{HEALTH_SERVICE}/") else _METADATA_SUMMARY

    async def authorized_handler(
        messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        # The transport converts an error of ``authorize`` to a gRPC status.
        await authorizer.authorize(summary, context)
        async for response in handler(
            _authorize_messages(messages, authorizer, summary, context), context
        ):
            yield response

    return authorized_handler


async def _authorize_messages(
    messages: AsyncIterator[Buffer],
    authorizer: RequestAuthorizer,
    summary: RequestSummary,
    context: RequestContext,
) -> AsyncIterator[Buffer]:
    """Yield ``messages``, and authorize each message after the first. The first message was
    authorized when the stream was opened."""
    is_first = True
    async for message in messages:
        if not is_first:
            await authorizer.authorize(summary, context)
        is_first = False
        yield message
