"""Traces the steps of a request: parsing, routing, rendering and jobs of helper processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, ParamSpec, TypeVar

from infergate.core.messages import InferRequest, InferResponse
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.core.tracing import Tracer
from infergate.gateway.route_binding import RouteBinding

P = ParamSpec("P")
T = TypeVar("T")
StreamInference = Callable[
    [InferRequest, RouteBinding, RequestContext], AsyncGenerator[InferResponse, None]
]

PARSE: Final = "parse"
ROUTE: Final = "route"
RENDER: Final = "render"
_HELPER: Final = "helper"


class Steps:
    """Wraps the steps of a gateway, so that ``tracer`` traces each call of a step. Without
    ``tracer``, each method returns the given step, stream or ``Offload`` unchanged, so that
    untraced requests have no overhead."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer: Final = tracer

    def sync(self, name: str, step: Callable[P, T]) -> Callable[P, T]:
        """Return a function that runs ``step`` within a span called ``name``."""
        tracer = self._tracer
        if tracer is None:
            return step

        def traced(*arguments: P.args, **named: P.kwargs) -> T:
            with tracer.start_step(name):
                return step(*arguments, **named)

        return traced

    def awaited(self, name: str, step: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return a function that awaits ``step`` within a span called ``name``."""
        tracer = self._tracer
        if tracer is None:
            return step

        async def traced(*arguments: P.args, **named: P.kwargs) -> T:
            with tracer.start_step(name):
                return await step(*arguments, **named)

        return traced

    def stream(self, stream: StreamInference) -> StreamInference:
        """Return a function that runs ``stream`` and records an event for each response."""
        tracer = self._tracer
        if tracer is None:
            return stream

        async def traced(
            request: InferRequest, binding: RouteBinding, context: RequestContext
        ) -> AsyncGenerator[InferResponse, None]:
            async with aclosing(stream(request, binding, context)) as responses:
                async for response in responses:
                    tracer.record_response(context)
                    yield response

        return traced

    def offload(self, offload: Offload) -> Offload:
        """Return an ``Offload`` that records a span for each job."""
        return offload if self._tracer is None else TracedOffload(offload, self._tracer)


UNTRACED: Final = Steps()


class TracedOffload:
    """Runs jobs on ``offload`` and records a span for each job. The span includes the wait for a
    free helper process."""

    def __init__(self, offload: Offload, tracer: Tracer) -> None:
        self._offload: Final = offload
        self._tracer: Final = tracer

    async def run(
        self, deadline: float | None, function: Callable[..., T], *arguments: Any, **options: Any
    ) -> T:
        with self._tracer.start_step(_HELPER):
            return await self._offload.run(deadline, function, *arguments, **options)
