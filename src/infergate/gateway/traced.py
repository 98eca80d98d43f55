"""The traced steps of a request: parse, route, render and the wait for a helper."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.core.tracing import Tracer
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.steps import P, Steps, StreamInference, T

_HELPER: Final = "helper"


class TracedSteps(Steps):
    """Records a span for each step and an event for each response of a stream."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer: Final = tracer

    def sync(self, name: str, step: Callable[P, T]) -> Callable[P, T]:
        """Return ``step``, run within a span called ``name``."""

        def traced(*arguments: P.args, **named: P.kwargs) -> T:
            with self._tracer.start_step(name):
                return step(*arguments, **named)

        return traced

    def awaited(self, name: str, step: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return ``step``, awaited within a span called ``name``."""

        async def traced(*arguments: P.args, **named: P.kwargs) -> T:
            with self._tracer.start_step(name):
                return await step(*arguments, **named)

        return traced

    def stream(self, stream: StreamInference) -> StreamInference:
        """Return ``stream``, which then records an event for each response."""

        async def traced(
            request: InferRequest, binding: RouteBinding, context: RequestContext
        ) -> AsyncGenerator[InferResponse, None]:
            async with aclosing(stream(request, binding, context)) as responses:
                async for response in responses:
                    self._tracer.record_response(context)
                    yield response

        return traced

    def offload(self, offload: Offload) -> Offload:
        """Return ``offload`` with a span for each use of a helper process."""
        return TracedOffload(offload, self._tracer)


class TracedOffload:
    """Records a span for each use of a helper process of ``offload``. The span includes the wait
    for a free helper."""

    def __init__(self, offload: Offload, tracer: Tracer) -> None:
        self._offload: Final = offload
        self._tracer: Final = tracer

    async def run(  # noqa: PLR0913 - as declared by Offload
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str],
        cost: int,
        memory: MemoryAccount = UNLIMITED,
        size: int = 0,
    ) -> T:
        with self._tracer.start_step(_HELPER):
            return await self._offload.run(
                deadline,
                function,
                *arguments,
                client=client,
                cost=cost,
                memory=memory,
                size=size,
            )
