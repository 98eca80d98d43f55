"""The operations of the gateway, which the frontends of all protocols call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.name_rules import NameRule
from infergate.core.request_context import RequestContext
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_plan import RoutePlan


class InferenceGateway(Protocol):
    """Routes operations to backends. All methods may raise GatewayError."""

    @property
    def name_rule(self) -> NameRule:
        """The rule for the names of models and versions."""
        ...

    def can_relay(self, protocol: str) -> bool:
        """Return whether a backend may serve inferences of ``protocol`` without a task."""
        ...

    def relay_plan(self, binding: RouteBinding) -> RoutePlan | None:
        """Return the steps of the inferences on ``binding``, or None if the inferences need a
        task."""
        ...

    def find_binding(
        self, model: str, version: str, headers: Mapping[str, str]
    ) -> RouteBinding | None:
        """Return the route of ``model``, or None if no route matches."""
        ...

    def depends_on_headers(self, model: str) -> bool:
        """Return whether the route of ``model`` depends on a request's headers."""
        ...

    def bind(self, model: str, version: str, context: RequestContext) -> RouteBinding:
        """Return the route of ``model`` and record it in ``context``. Raises NOT_FOUND."""
        ...

    def known_metadata(
        self,
        model: str,
        version: str,
        binding: RouteBinding,
        context: RequestContext,
        cached: Callable[[str, str], ModelMetadata | None],
    ) -> ModelMetadata | None:
        """Return the metadata that ``describe`` returns, or None if the backend must be queried for
        it. ``cached`` returns the metadata in the backend's cache."""
        ...

    async def describe(
        self, model: str, version: str, context: RequestContext, *, newer: bool = False
    ) -> ModelMetadata:
        """Return the metadata of a model with the client's names, and record the model's route in
        ``context``. The metadata is at most a minute old or, with ``newer``, at most a second
        old."""
        ...

    async def perform(self, operation: Operation, context: RequestContext) -> Response: ...

    def check_inference(self, request: InferRequest, context: RequestContext) -> None:
        """Run the checks of ``infer`` on ``request`` without running the inference. Raises
        GatewayError."""
        ...

    def infer(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext, /
    ) -> Awaitable[InferResponse]:
        """Run ``request`` on the backend of ``binding`` or on another target of the same route."""
        ...

    def stream(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext, /
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand. The backend of ``binding`` or another
        target of the same route serves the request."""
        ...
