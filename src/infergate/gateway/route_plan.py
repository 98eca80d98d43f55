"""Adapts the inferences of a route to the route's backend in steps, which are chosen once for each
route. A route whose inferences need no changes has no steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

from infergate.backends.relay_support import SupportsRelay
from infergate.codecs.base import Profile
from infergate.core.accounting import needs_accounting
from infergate.core.classification import CLASSIFICATION
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Response
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from infergate.core.sequences import SEQUENCE_ID, sequence_key
from infergate.core.tensor import OpaqueParameters
from infergate.gateway import cast
from infergate.gateway.classification import request_values, requests_classes
from infergate.gateway.datatypes import cast_for_backend, cast_substitutes_back, fit_response
from infergate.gateway.rename import inference_to_backend, metadata_to_backend, outputs_to_client
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.shared_memory import SharedMemory, uses_shared_memory

DescribeModel = Callable[[str, str, RouteBinding, RequestContext], Awaitable[ModelMetadata]]
"""Returns the metadata of a model and version on a route, with the client's names."""
_RequestStep = Callable[[InferRequest, RequestContext], Awaitable[InferRequest]]
_Respond = Callable[[Response], Awaitable[InferResponse]]


class RoutePlan:
    """Runs inferences on the backend of ``binding``. ``TrafficSplit`` uses the route's other
    targets. ``declared`` is the metadata from the configuration, keyed by the client's model
    name."""

    def __init__(
        self,
        binding: RouteBinding,
        declared: Mapping[str, ModelMetadata],
        shared_memory: SharedMemory,
        describe: DescribeModel,
    ) -> None:
        route, backend = binding.route, binding.backend
        self.binding: Final = binding
        self._backend: Final = backend
        self._declared: Final = declared
        self._declared_policies: Final[dict[str, RoutePolicy]] = {}
        """Route policies with the declared metadata, keyed by model."""
        self._shared_memory: Final = shared_memory
        self._describe: Final = describe
        self.renames: Final = route.rewrite.renames
        relaying = backend if isinstance(backend, SupportsRelay) else None
        if relaying is not None and not relaying.codec.needs_metadata:
            declared = {}  # the backend would not use the metadata
        needed: list[tuple[object, _RequestStep]] = [
            (route.cast, self._cast_back),
            (not backend.supports_sequences, self._refuse_sequence),
            (declared and (not route.is_exact or route.pattern in declared), self._declare),
            (binding.unsupported_datatypes, self._cast),
            (self.renames, self._rename),
        ]
        self._request_steps: Final = tuple(step for is_needed, step in needed if is_needed)
        self._renames_response: Final = bool(route.rewrite.version or route.rewrite.outputs)
        if relaying is not None and (
            # ``Relay`` supports only the step ``_rename``.
            any(is_needed for is_needed, step in needed if step != self._rename)
            or route.retry.is_idempotent
            or relaying.codec.needs_metadata
        ):
            relaying = None
        self.relaying: Final[SupportsRelay | None] = relaying
        self.sender: Final = None if relaying is None else relaying.relay_sender
        """The sender of relayed requests, or None if requests need tasks."""

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        if type(request.parameters) is OpaqueParameters:
            request.parameters.is_passed_to(self._backend.protocol)
        if _has_special_tensors(request):
            async with self._adapted(request, context) as (adapted, respond):
                return await respond(await self._backend.perform(adapted, context))
        adapted = request
        for step in self._request_steps:
            adapted = await step(adapted, context)
        response = self.for_client(await self._backend.perform(adapted, context), request)
        if not context.unsupported_datatypes:
            return response
        route = self.binding.route
        return await fit_response(response, request, None, route.cast, route.labels, context)

    def relayed_profile(self, request: InferRequest) -> Profile | None:
        """Return the profile of the server to which ``request`` can be relayed. Return None if
        ``infer`` must serve the request. Raises GatewayError."""
        if type(request.parameters) is OpaqueParameters:
            request.parameters.is_passed_to(self._backend.protocol)
        relaying, sender = self.relaying, self.sender
        assert relaying is not None
        assert sender is not None
        if (
            _has_special_tensors(request)
            or needs_accounting(request.inputs)
            or (
                sender.endpoints.has_several
                and self._backend.supports_sequences
                and sequence_key(request) is not None
            )
        ):
            return None
        return relaying.inference_profile()

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        if type(request.parameters) is OpaqueParameters:
            request.parameters.is_passed_to(self._backend.protocol)
        async with (
            self._adapted(request, context) as (adapted, respond),
            aclosing(self._backend.stream(adapted, context)) as responses,
        ):
            async for response in responses:
                yield await respond(response)
                context.policy = self.binding.idle_policy
                context.renew_deadline()

    @asynccontextmanager
    async def _adapted(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncIterator[tuple[InferRequest, _Respond]]:
        """Yield the request for the backend, and the function that converts each response for the
        client."""
        if not uses_shared_memory(request):
            yield await self._adapt(request, context)
            return
        by_name = not self.binding.route.cast
        async with self._shared_memory.stage(request, self._backend, by_name=by_name) as staged:
            adapted, respond = await self._adapt(staged.request, context)

            async def write_outputs(response: Response) -> InferResponse:
                return await staged.write_outputs(await respond(response))

            yield adapted, write_outputs

    async def _adapt(
        self, request: InferRequest, context: RequestContext
    ) -> tuple[InferRequest, _Respond]:
        model, adapted = None, request
        if requests_classes(request) and not await self._backend.supports_classification(context):
            model = await self._describe(request.model, request.version, self.binding, context)
            adapted = request_values(request)
        for step in self._request_steps:
            adapted = await step(adapted, context)

        async def respond(response: Response) -> InferResponse:
            result, route = self.for_client(response, request), self.binding.route
            return await fit_response(result, request, model, route.cast, route.labels, context)

        return adapted, respond

    def for_client(self, response: Response, request: InferRequest) -> InferResponse:
        """Return ``response`` with the client's names and the request's id. Some servers generate
        an id for a request without an id, and others drop the id."""
        assert isinstance(response, InferResponse)
        version, outputs = response.version, response.outputs
        if self._renames_response:
            version = self.binding.route.client_version(request.version, version)
            outputs = outputs_to_client(outputs, self.binding.route)
        elif response.model == request.model and response.id == request.id:
            return response
        return InferResponse(
            request.model, version, request.id, response.parameters, outputs, response.is_last
        )

    # ---- the steps of a request, in this order

    async def _cast_back(self, request: InferRequest, context: RequestContext) -> InferRequest:
        """Cast inputs back to the model's datatypes if the client's protocol does not support these
        datatypes."""
        binding = self.binding
        casts = cast.casts_of(
            context.unsupported_datatypes - binding.unsupported_datatypes, binding.route.cast
        )
        if not any(tensor.datatype in casts.values() for tensor in request.inputs):
            return request
        model = await self._describe(request.model, request.version, binding, context)
        return await cast_substitutes_back(request, model, casts, context)

    async def _refuse_sequence(
        self, request: InferRequest, context: RequestContext
    ) -> InferRequest:
        del context
        backend, parameters = self._backend, request.parameters
        is_passed = isinstance(parameters, OpaqueParameters) and parameters.is_passed_to(
            backend.protocol
        )
        if not is_passed and sequence_key(request) is not None:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"parameter '{SEQUENCE_ID}': backend '{backend.name}' speaks "
                f"{backend.protocol}, which has no sequences",
            )
        return request

    async def _declare(self, request: InferRequest, context: RequestContext) -> InferRequest:
        model = request.model
        if model in self._declared and model not in self._declared_policies:
            metadata = metadata_to_backend(self._declared[model], request, self.binding.route)
            policy = self.binding.policy
            self._declared_policies[model] = RoutePolicy(
                policy.timeout, policy.retry, metadata, policy.priority
            )
        context.policy = self._declared_policies.get(model, self.binding.policy)
        return request

    async def _cast(self, request: InferRequest, context: RequestContext) -> InferRequest:
        return await cast_for_backend(request, self.binding, context)

    async def _rename(self, request: InferRequest, context: RequestContext) -> InferRequest:
        del context
        return inference_to_backend(request, self.binding.route)


def _has_special_tensors(request: InferRequest) -> bool:
    for tensor in request.inputs:
        if tensor.shared_memory is not None:
            return True
    for output in request.outputs:
        if output.shared_memory is not None or CLASSIFICATION in output.parameters:
            return True
    return False
