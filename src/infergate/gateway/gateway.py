"""Performs the operations that the frontends of all protocols call.

The gateway routes an operation on a model by name, version and headers, sends it to the backend
with the backend's names, and returns the response with the client's names. For an operation on the
server, the gateway queries the backends if necessary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from infergate import __version__
from infergate.backends.base import Backend, SupportsHealthWatch
from infergate.backends.relay_support import SupportsRelay
from infergate.core import messages
from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.tensor import NO_PARAMETERS
from infergate.gateway.datatypes import metadata_for_client
from infergate.gateway.model_catalogue import READY, ModelCatalogue, query_backend
from infergate.gateway.model_configuration import config_from_metadata, is_numeric_version
from infergate.gateway.observed_route import ExchangeObserver, ObservedRoute
from infergate.gateway.readiness import Readiness
from infergate.gateway.rename import metadata_to_client, statistics_to_client, to_backend, to_client
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_layers import RouteInferences, RouteLayer, TransformsMetadata
from infergate.gateway.route_plan import RoutePlan
from infergate.gateway.server_control import (
    NO_PERMISSIONS,
    ControlPermissions,
    ModelsChanged,
    ServerControl,
)
from infergate.gateway.shared_memory import SharedMemory
from infergate.gateway.statistics import GatewayStatistics, merge_statistics
from infergate.gateway.steps import ROUTE, UNTRACED, Steps
from infergate.gateway.traffic_split import TrafficSplit
from infergate.routing.table import RouteTable, serving_backends

if TYPE_CHECKING:  # importing summaries costs each process time and memory
    from infergate.comparison.summary import Summary
    from infergate.gateway.comparer import MirrorComparer

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "parameters",
    "sequence",
    "statistics",
)
"""V2 extensions that the gateway supports. A model may support only some of these extensions."""
_SERVER_NAME: Final = "infergate"
_STARTED_NS: Final = time.monotonic_ns()
_DEFAULT_VERSION: Final = "1"
"""The version in the statistics of a model without a numeric version."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The optional parts of a gateway."""

    combine_readiness: Callable[[Sequence[bool]], bool] = all
    """Combines the readiness of all backends: ``all`` (strict) or ``any`` (lenient)."""
    shared_memory: SharedMemory = field(
        default_factory=lambda: SharedMemory(DEFAULT_LIMITS, enabled=False)
    )
    permissions: ControlPermissions = NO_PERMISSIONS
    counters_of: Callable[[str], RouteCounters] = lambda _: RouteCounters()
    """Returns the counters of a route. The argument is the route's label."""
    aggregate_statistics: Callable[[str, str], Awaitable[messages.ModelStatistics]] | None = None
    """Returns a model's statistics from all worker processes. It is None if there is only one
    process."""
    steps: Steps = UNTRACED
    observers: Mapping[int, Sequence[ExchangeObserver]] = field(default_factory=dict)
    """The observers of routes with layers, keyed by the route's position in the table, because
    routes that differ only in their headers have the same label. Observers receive requests and
    responses in the form that the client sends and receives."""
    layers: Mapping[int, Sequence[RouteLayer]] = field(default_factory=dict)
    """The layers of routes, keyed by the route's position in the table. The first layer is next to
    the client."""
    comparer: MirrorComparer | None = None
    """Compares the responses of mirrors. It is None if no route compares them."""
    models_changed: ModelsChanged | None = None


class RoutingGateway:
    """Routes operations to backends."""

    def __init__(
        self,
        table: RouteTable,
        backends: Mapping[str, Backend],
        declared: Mapping[str, ModelMetadata],
        options: GatewayOptions | None = None,
        predecessor: RoutingGateway | None = None,
    ) -> None:
        """``declared`` is metadata from the configuration, keyed by the client's model name. It
        takes precedence over the backend's metadata. This gateway continues the statistics and the
        readiness of ``predecessor``, the gateway of the previous configuration."""
        options = options or GatewayOptions()
        self.bind: Final = options.steps.sync(ROUTE, self._bind)
        self.stream: Final = options.steps.stream(self._stream)
        self.backends: Final = tuple(backends.values())
        self.declared: Final = declared
        self.shared_memory: Final = options.shared_memory
        self._extensions: Final = (
            *EXTENSIONS,
            *options.permissions.extensions,
            *self.shared_memory.extensions,
        )
        self._control: Final = ServerControl(
            options.permissions, self.backends, self.bind_any, options.models_changed
        )
        self.bindings: Final = tuple(RouteBinding(r, backends[r.backend]) for r in table.routes)
        self._table: Final = table
        self.name_rule: Final = table.name_rule
        self._binding_of: Final = {id(binding.route): binding for binding in self.bindings}
        self._compile: Final = partial(
            RoutePlan,
            declared=declared,
            shared_memory=self.shared_memory,
            describe=self._describe_model,
        )
        self._plans: Final[dict[RouteBinding, RouteInferences]] = {}
        """The compiled steps of routes. The steps of a route without layers or other targets are
        compiled when the route is first used, because there may be thousands of routes."""
        self.comparer: Final = options.comparer
        self.traffic_splits: Final[Mapping[RouteBinding, TrafficSplit]] = {
            binding: TrafficSplit(
                binding,
                backends,
                options.counters_of(binding.label),
                self._compile,
                None if self.comparer is None else self.comparer.of_route(binding.route),
            )
            for binding in self.bindings
            if binding.route.has_other_targets
        }
        self._plans.update(self.traffic_splits)
        for position, binding in enumerate(self.bindings):
            if binding.route.has_layers:
                self._plans[binding] = self._add_layers(binding, position, options)
        self._serving: Final = serving_backends(table.routes)
        self._combine_readiness: Final = options.combine_readiness
        self._catalogue: Final = ModelCatalogue(
            table, self.bindings, self, self.configuration, self.statistics
        )
        exact = (route.pattern for route in table.routes if route.is_exact)
        self._configured_models: Final = frozenset((*exact, *declared))
        self._aggregate_statistics: Final = options.aggregate_statistics
        self.own_statistics: Final[GatewayStatistics] = (
            predecessor.own_statistics
            if predecessor
            else GatewayStatistics(self._configured_models)
        )
        self.readiness: Final[Readiness] = (
            predecessor.readiness if predecessor else Readiness(self._is_ready)
        )

    def take_over(self) -> None:
        """Start to serve in place of the predecessor."""
        self.own_statistics.set_configured_models(self._configured_models)
        self.readiness.replace_check(self._is_ready)

    async def close(self) -> None:
        """Cancel mirrored requests and comparisons that are in progress."""
        await asyncio.gather(*(split.close() for split in self.traffic_splits.values()))
        if self.comparer is not None:
            await self.comparer.close()

    def comparisons(self) -> Iterable[Summary]:
        """Return the current summaries of the comparisons of mirrors."""
        return () if self.comparer is None else self.comparer.summaries()

    def reset_comparisons(self) -> None:
        """Start new summaries of comparisons."""
        if self.comparer is not None:
            self.comparer.reset()

    def route_label(self, model: str, version: str, headers: Mapping[str, str]) -> str:
        """Return the label of the route for a request, or an empty string if no route matches."""
        route = self._table.find(model, version, headers)
        return "" if route is None else route.label

    def find_binding(
        self, model: str, version: str, headers: Mapping[str, str]
    ) -> RouteBinding | None:
        route = self._table.find(model, version, headers)
        return None if route is None else self._binding_of[id(route)]

    def depends_on_headers(self, model: str) -> bool:
        return self._table.depends_on_headers(model)

    def _bind(self, model: str, version: str, context: RequestContext) -> RouteBinding:
        route = self._table.find(model, version, context.headers)
        if route is None:
            candidates = self._table.candidates(model)
            if any(candidate.version in ("", version) for candidate in candidates):
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for requests with these headers"
                )
            if candidates:
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for version '{version}'"
                )
            raise GatewayError(Kind.NOT_FOUND, f"no route for model '{model}'")
        binding = self._binding_of[id(route)]
        binding.apply_to(context)
        return binding

    def bind_any(self, model: str, context: RequestContext) -> RouteBinding:
        """Return the route that serves ``model`` in the version of the model's first route, and
        record the returned route in ``context``. Raises NOT_FOUND."""
        first = next(iter(self._table.candidates(model)), None)
        return self.bind(model, first.version if first else "", context)

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        match operation:
            case messages.ServerLiveRequest():
                return messages.HealthStatus(ok=True)
            case messages.ServerReadyRequest():
                return messages.HealthStatus(ok=await self.readiness.is_ready())
            case messages.ServerMetadataRequest():
                return messages.ServerMetadata(_SERVER_NAME, __version__, self._extensions)
            case messages.ModelIndexRequest(_, ""):
                return await self._catalogue.index(operation, context)
            case messages.ModelIndexRequest():
                return await self._catalogue.versions(operation, context)
            case messages.ServerStatusRequest(model):
                return await self._server_status(model, context)
            case messages.ModelMetadataRequest():
                return await self._model_metadata(operation, context)
            case InferRequest():
                return await self.infer(
                    operation, self.bind(operation.model, operation.version, context), context
                )
            case messages.ModelReadyRequest():
                return await self._model_readiness(operation, context)
            case _:
                return await self._perform_extension(operation, context)

    async def _perform_extension(self, operation: Operation, context: RequestContext) -> Response:
        match operation:
            case messages.ModelConfigRequest():
                return await self.configuration(operation, context)
            case messages.ModelStatisticsRequest(""):
                return await self._catalogue.statistics(context)
            case messages.ModelStatisticsRequest():
                return await self.statistics(operation, context)
            case (
                messages.SharedMemoryStatusRequest()
                | messages.SharedMemoryRegisterRequest()
                | messages.SharedMemoryUnregisterRequest()
            ):
                return await self.shared_memory.perform(operation, context)
            case _:
                return await self._control.perform(operation, context)

    def infer(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext
    ) -> Awaitable[InferResponse]:
        return (self._plans.get(binding) or self._keep_plan(binding)).infer(request, context)

    def _stream(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        return (self._plans.get(binding) or self._keep_plan(binding)).stream(request, context)

    def check_inference(self, request: InferRequest, context: RequestContext) -> None:
        """Accept every request. ``AuthorizedGateway`` checks the client's permit."""

    def can_relay(self, protocol: str) -> bool:
        return any(
            backend.relay_sender is not None
            and (backend.protocol == protocol or not backend.codec.needs_metadata)
            for backend in self.backends
            if isinstance(backend, SupportsRelay)
        )

    def relay_plan(self, binding: RouteBinding) -> RoutePlan | None:
        plan = self._plans.get(binding) or self._keep_plan(binding)
        return plan if isinstance(plan, RoutePlan) and plan.sender is not None else None

    def _add_layers(
        self, binding: RouteBinding, position: int, options: GatewayOptions
    ) -> RouteInferences:
        inferences: RouteInferences = self.traffic_splits.get(binding) or self._compile(binding)
        for layer in reversed(options.layers.get(position, ())):
            inferences = layer(inferences)
            if isinstance(layer, TransformsMetadata):
                binding.metadata_layers.append(layer)
        observers = options.observers.get(position, ())
        return ObservedRoute(inferences, observers) if observers else inferences

    def _keep_plan(self, binding: RouteBinding) -> RoutePlan:
        plan = self._plans[binding] = self._compile(binding)
        return plan

    async def _model_metadata(
        self, operation: messages.ModelMetadataRequest, context: RequestContext
    ) -> ModelMetadata:
        binding = self.bind(operation.model, operation.version, context)
        metadata: Response | None = self._declared_metadata(operation.model)
        if metadata is None:
            metadata = await self._perform_on_backend(operation, binding, context)
        assert isinstance(metadata, ModelMetadata)
        return metadata_for_client(metadata, binding, context)

    def _declared_metadata(self, model: str) -> ModelMetadata | None:
        declared = self.declared.get(model)
        if declared is None or declared.name == model:
            return declared
        return replace(declared, name=model)

    async def _model_readiness(
        self, operation: messages.ModelReadyRequest, context: RequestContext
    ) -> Response:
        """Return whether a model is ready. If the server does not support this request, the model
        is ready if it has metadata, possibly from the configuration, and the server is ready."""
        binding = self.bind(operation.model, operation.version, context)
        try:
            return await self._perform_on_backend(operation, binding, context)
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED or error.origin is not Origin.BACKEND:
                raise
        await self._describe_model(operation.model, operation.version, binding, context)
        return messages.HealthStatus(ok=await _is_backend_ready(binding.backend, context))

    async def configuration(
        self, operation: messages.ModelConfigRequest, context: RequestContext
    ) -> messages.ModelConfig:
        """Return the configuration of a model from the server. If the server reports none, or the
        model's metadata is declared or transformed, derive the tensors from the metadata."""
        model, version = operation.model, operation.version
        binding, settings = self.bind(model, version, context), NO_PARAMETERS
        if (
            model not in self.declared
            and (await binding.backend.server_profile(context)).reports_config
        ):
            config = await self._perform_on_backend(operation, binding, context)
            assert isinstance(config, messages.ModelConfig)
            if not binding.metadata_layers:
                return config
            settings = config.settings
        metadata = await self._describe_model(model, version, binding, context)
        return config_from_metadata(metadata_for_client(metadata, binding, context), settings)

    async def statistics(
        self, operation: messages.ModelStatisticsRequest, context: RequestContext
    ) -> messages.ModelStatistics:
        """Return the merged statistics of a model from its servers. If the servers report no
        statistics, return the gateway's own statistics."""
        binding = self.bind(operation.model, operation.version, context)
        if not (await binding.backend.server_profile(context)).reports_statistics:
            version = await self._statistics_version(operation, binding, context)
            if self._aggregate_statistics is not None:
                return await self._aggregate_statistics(operation.model, version)
            return self.own_statistics.statistics_of(operation.model, version)
        backend_request = to_backend(operation, binding.route)
        responses = await binding.backend.perform_on_all(backend_request, context)
        merged = merge_statistics(
            [response for response in responses if isinstance(response, messages.ModelStatistics)]
        )
        return statistics_to_client(merged, operation, binding.route)

    async def _statistics_version(
        self,
        operation: messages.ModelStatisticsRequest,
        binding: RouteBinding,
        context: RequestContext,
    ) -> str:
        """Return the version for which the gateway reports its own statistics. If no version is
        requested, the result is the highest numeric version, or 1 if no numeric version is known,
        because perf_analyzer reads only numeric versions. Raises NOT_FOUND."""
        try:
            model = await self._describe_model(operation.model, operation.version, binding, context)
        except GatewayError as error:
            if error.kind is Kind.NOT_FOUND:
                raise
            return operation.version or _DEFAULT_VERSION  # the statistics need no metadata
        numeric = [version for version in model.versions if is_numeric_version(version)]
        return operation.version or max(numeric, key=int, default=_DEFAULT_VERSION)

    async def _perform_on_backend(
        self, operation: messages.ModelOperation, binding: RouteBinding, context: RequestContext
    ) -> Response:
        response = await binding.backend.perform(to_backend(operation, binding.route), context)
        return to_client(response, operation, binding.route)

    def known_metadata(
        self,
        model: str,
        version: str,
        binding: RouteBinding,
        context: RequestContext,
        cached: Callable[[str, str], ModelMetadata | None],
    ) -> ModelMetadata | None:
        metadata = self._declared_metadata(model)
        if metadata is None:
            request = messages.ModelMetadataRequest(model, version)
            backend_request = to_backend(request, binding.route)
            backend_metadata = cached(backend_request.model, backend_request.version)
            if backend_metadata is None:
                return None
            metadata = metadata_to_client(backend_metadata, request, binding.route)
        return metadata_for_client(metadata, binding, context)

    async def describe(
        self, model: str, version: str, context: RequestContext, *, newer: bool = False
    ) -> ModelMetadata:
        binding = self.bind(model, version, context)
        return metadata_for_client(
            await self._describe_model(model, version, binding, context, newer=newer),
            binding,
            context,
        )

    async def _describe_model(
        self,
        model: str,
        version: str,
        binding: RouteBinding,
        context: RequestContext,
        *,
        newer: bool = False,
    ) -> ModelMetadata:
        declared = self._declared_metadata(model)
        if declared is not None:
            return declared
        request = messages.ModelMetadataRequest(model, version)
        backend_request = to_backend(request, binding.route)
        metadata = await binding.backend.describe(
            backend_request.model, backend_request.version, context, refresh=newer
        )
        return metadata_to_client(metadata, request, binding.route)

    async def _server_status(self, model: str, context: RequestContext) -> messages.ServerStatus:
        if model:
            models: tuple[messages.ModelStatus, ...] = (
                await self._catalogue.status(model, context),
            )
        else:
            models = await self._catalogue.statuses(context)
        server = await self._single_server_status(model, context)
        version, uptime = __version__, time.monotonic_ns() - _STARTED_NS
        if isinstance(server, messages.ServerStatus):
            version, uptime = server.version or version, server.uptime_ns or uptime
        return messages.ServerStatus(
            _SERVER_NAME, version, await self.readiness.is_ready(), models, uptime
        )

    async def _single_server_status(self, model: str, context: RequestContext) -> Response | None:
        """Return the status of the only backend. Return None if there are several backends, or if
        the backend reports no status."""
        backends = {id(binding.backend): binding.backend for binding in self.bindings}
        if len(backends) != 1:
            return None
        (backend,) = backends.values()
        name = self.bind_any(model, context.child()).route.backend_model(model) if model else ""
        return await query_backend(backend, messages.ServerStatusRequest(name), context)

    async def _is_ready(self, context: RequestContext) -> bool:
        checks = (
            _is_backend_ready(backend, context)
            for backend in self.backends
            if backend.name in self._serving
        )
        return self._combine_readiness(await asyncio.gather(*checks))


async def _is_backend_ready(backend: Backend, context: RequestContext) -> bool:
    checked = backend.is_ready if isinstance(backend, SupportsHealthWatch) else None
    return (
        await query_backend(backend, messages.ServerReadyRequest(), context) == READY
        if checked is None
        else checked
    )
