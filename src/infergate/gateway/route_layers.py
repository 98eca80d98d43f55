"""The inferences of a route. ``ObservedRoute`` is a layer around them, before the route's split,
fallback and mirror: it sees each inference in canonical form with the client's names. Routes
without layers do not pay for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from typing import Protocol

from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext


class RouteInferences(Protocol):
    """Runs the inferences of a route. Every method raises GatewayError."""

    def infer(self, request: InferRequest, context: RequestContext) -> Awaitable[InferResponse]:
        """Run ``request`` and return its only response."""
        ...

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand."""
        ...
