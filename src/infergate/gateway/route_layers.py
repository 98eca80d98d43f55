"""Layers around the inferences of a route, such as a transform or a response cache.

A layer sees each inference in canonical form with the client's names, before the route's split,
fallback and mirror. The layers of a route are, from the client inwards: observers
(``ObservedRoute``), request hooks, the response cache, and transforms. Layers cost nothing on
routes without them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, runtime_checkable

from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
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


RouteLayer = Callable[[RouteInferences], RouteInferences]
"""Wraps the inferences of the next layer."""


@runtime_checkable
class TransformsMetadata(Protocol):
    """A ``RouteLayer`` that changes tensors, so that clients see different metadata than the next
    layer."""

    def __call__(self, inner: RouteInferences, /) -> RouteInferences: ...

    def transform_metadata(self, model: ModelMetadata) -> ModelMetadata:
        """Return the model's metadata as clients see it. ``model`` is the metadata of the next
        layer. Raises GatewayError."""
        ...
