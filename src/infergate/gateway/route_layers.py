"""Layers around the inferences of a route, such as transforms or a response cache.

A layer receives each inference in canonical form with the client's names, before the route's split,
fallback and mirror. From the client to the backend, the layers of a route are observers
(``ObservedRoute``), request hooks, the response cache, and transforms. Routes without layers have
no overhead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, runtime_checkable

from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.request_context import RequestContext


class RouteInferences(Protocol):
    """Runs the inferences of a route. All methods may raise GatewayError."""

    def infer(self, request: InferRequest, context: RequestContext) -> Awaitable[InferResponse]:
        """Run ``request`` and return its only response."""
        ...

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand."""
        ...


RouteLayer = Callable[[RouteInferences], RouteInferences]
"""Wraps the inferences of the next layer."""


@runtime_checkable
class TransformsMetadata(Protocol):
    """A ``RouteLayer`` that changes tensors, and therefore the metadata that clients see."""

    def __call__(self, inner: RouteInferences, /) -> RouteInferences: ...

    def transform_metadata(self, model: ModelMetadata) -> ModelMetadata:
        """Return the metadata that clients see. ``model`` is the metadata from the next layer.
        Raises GatewayError."""
        ...
