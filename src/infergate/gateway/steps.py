"""The steps of a request that appear in a trace. They are wrapped once, when the gateway is
built."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

from infergate.core.messages import InferRequest, InferResponse
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.gateway.route_binding import RouteBinding

P = ParamSpec("P")
T = TypeVar("T")
StreamInference = Callable[
    [InferRequest, RouteBinding, RequestContext], AsyncGenerator[InferResponse, None]
]

PARSE: Final = "parse"
ROUTE: Final = "route"
RENDER: Final = "render"


class Steps:
    """Returns every step unchanged, so that untraced requests have no overhead. A subclass records
    the steps."""

    def sync(self, name: str, step: Callable[P, T]) -> Callable[P, T]:
        """Return ``step``, observed under ``name``."""
        del name
        return step

    def awaited(self, name: str, step: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return ``step``, whose result is awaited, observed under ``name``."""
        del name
        return step

    def stream(self, stream: StreamInference) -> StreamInference:
        """Return ``stream`` with each of its responses observed."""
        return stream

    def offload(self, offload: Offload) -> Offload:
        """Return ``offload`` with each use of a helper observed."""
        return offload


UNTRACED: Final = Steps()
