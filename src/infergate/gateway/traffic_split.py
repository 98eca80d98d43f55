"""Traffic splits, fallbacks and mirrors, which send a route's inferences to targets other than the
route's own backend.

- The target is chosen by a hash of the request's sequence, or else of the configured header, or
  else of the request id. All requests of a sequence therefore have the same target.
- Only a request that could not be sent to the route's backend uses the fallback. A request of a
  sequence never uses the fallback, because the sequence's state is on the original backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from infergate.backends.base import Backend
from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.sequences import sequence_key
from infergate.gateway.mirror import MirrorSender
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_plan import RoutePlan
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.routing.split import pick_target
from infergate.routing.table import Rewrite


class TrafficSplit:
    """The other targets of ``own``, a route with its backend."""

    def __init__(
        self,
        own: RouteBinding,
        backends: Mapping[str, Backend],
        counters: RouteCounters,
        compile_route: Callable[[RouteBinding], RoutePlan],
    ) -> None:
        route, mirror = own.route, own.route.mirror

        def target(backend: str, rewrite: Rewrite = route.rewrite) -> RoutePlan:
            to_backend = replace(route, backend=backend, rewrite=rewrite)
            return compile_route(RouteBinding(to_backend, backends[backend]))

        self._label: Final = own.label
        self._own: Final = compile_route(own)
        self._split_header: Final = route.split_by
        self._percentages: Final = tuple(item.percent for item in route.split)
        self._targets: Final = tuple(target(item.backend, item.rewrite) for item in route.split)
        self._fallback: Final = target(route.fallback) if route.fallback else None
        self._mirror: Final = target(mirror.backend) if mirror else None
        self._mirror_percentages: Final = (mirror.percent if mirror else 0.0,)
        self._mirror_sender: Final = MirrorSender(mirror.max_concurrent if mirror else 0, counters)
        self._counters: Final = counters

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        try:
            try:
                return await self._choose_target(request, context).infer(request, context)
            except GatewayError as error:
                fallback = self._fallback_after(error, request, context)
                if fallback is None:
                    raise
            return await fallback.infer(request, context)
        finally:
            self._send_mirror(request, context, RoutePlan.infer)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        has_response = False
        try:
            target = self._choose_target(request, context)
            try:
                async with aclosing(target.stream(request, context)) as responses:
                    async for response in responses:
                        has_response = True
                        yield response
            except GatewayError as error:
                fallback = None if has_response else self._fallback_after(error, request, context)
                if fallback is None:
                    raise
            else:
                return
            async with aclosing(fallback.stream(request, context)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._send_mirror(request, context, _discard_stream)

    def _choose_target(self, request: InferRequest, context: RequestContext) -> RoutePlan:
        if not self._targets:
            return self._own
        index = pick_target(
            self._percentages, f"{self._label}\0{self._split_key(request, context)}"
        )
        if index is None:
            return self._own
        self._targets[index].binding.apply_to(context)
        return self._targets[index]

    def _split_key(self, request: InferRequest, context: RequestContext) -> str:
        sequence = sequence_key(request)
        if sequence is not None:
            return f"{sequence.model}\0{sequence.id}"
        return context.headers.get(self._split_header) or context.request_id

    def _fallback_after(
        self, error: GatewayError, request: InferRequest, context: RequestContext
    ) -> RoutePlan | None:
        """Return the fallback for ``request`` after ``error`` and record it in ``context``. Return
        None if no fallback applies."""
        fallback = self._fallback
        if fallback is None or error.kind is not Kind.CONNECT or sequence_key(request) is not None:
            return None
        self._counters.fallbacks += 1
        fallback.binding.apply_to(context)
        return fallback

    def _send_mirror(
        self,
        request: InferRequest,
        context: RequestContext,
        send: Callable[[RoutePlan, InferRequest, RequestContext], Awaitable[object]],
    ) -> None:
        """Send a copy of ``request`` if the route mirrors it. Requests with shared memory are not
        mirrored, because the client may reuse the memory before the copy is sent."""
        mirror = self._mirror
        if mirror is None or uses_shared_memory(request):
            return
        key = f"{self._label}\0mirror\0{self._split_key(request, context)}"
        if pick_target(self._mirror_percentages, key) is None:
            return
        memory = self._mirror_sender.admit(request, context.memory)
        if memory is not None:
            child = context.child()
            child.deadline = child.stream_deadline = None
            child.memory = memory
            mirror.binding.apply_to(child)
            self._mirror_sender.send(request, send(mirror, request, child), memory)

    async def close(self) -> None:
        await self._mirror_sender.close()


async def _discard_stream(
    target: RoutePlan, request: InferRequest, context: RequestContext
) -> None:
    async with aclosing(target.stream(request, context)) as responses:
        async for _ in responses:
            pass
