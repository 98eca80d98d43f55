"""Traffic splits, fallbacks and mirrors, which send a route's inferences to targets other than the
route's own backend.

- A request's key determines the target. The key is the request's sequence, else the value of the
  configured header, else the request id. All requests of a sequence have the same target.
- A request uses the fallback only if it could not be sent to its target. Requests of a sequence
  never use the fallback, because the original backend has the state of the sequence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from infergate.backends.base import Backend
from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.sequences import sequence_key
from infergate.core.tensor import data_bytes
from infergate.gateway.mirror import MirrorSender, copy_context
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_plan import RoutePlan
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.routing.affinity import hash_key
from infergate.routing.split import pick_target
from infergate.routing.table import Rewrite

if TYPE_CHECKING:  # routes without comparison do not need these modules
    from infergate.gateway.compared_mirror import ComparedMirror, KeptInference
    from infergate.gateway.comparer import RouteComparer


class TrafficSplit:
    """Runs inferences on the targets of the route ``own``. ``comparer`` compares the mirror's
    responses. If ``comparer`` is None, these responses are discarded."""

    def __init__(
        self,
        own: RouteBinding,
        backends: Mapping[str, Backend],
        counters: RouteCounters,
        compile_route: Callable[[RouteBinding], RoutePlan],
        comparer: RouteComparer | None = None,
    ) -> None:
        route, mirror = own.route, own.route.mirror

        def target(backend: str, rewrite: Rewrite = route.rewrite) -> RoutePlan:
            to_backend = replace(route, backend=backend, rewrite=rewrite)
            return compile_route(RouteBinding(to_backend, backends[backend]))

        self._label: Final = own.label
        self._own: Final = compile_route(own)
        self._split_key: Final = partial(split_key, header=route.split_by)
        self._percentages: Final = tuple(item.percent for item in route.split)
        self._targets: Final = tuple(target(item.backend, item.rewrite) for item in route.split)
        self._fallback: Final = target(route.fallback) if route.fallback else None
        self._mirror: Final = target(mirror.backend, mirror.rewrite) if mirror else None
        self._mirror_percentages: Final = (mirror.percent if mirror else 0.0,)
        self._mirror_sender: Final = MirrorSender(mirror.max_concurrent if mirror else 0, counters)
        self._counters: Final = counters
        self._compared: Final = (
            _compared_mirror(comparer, self._mirror, target)
            if comparer is not None and self._mirror is not None
            else None
        )

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        if self._mirror is None:  # entering ``_mirrored`` takes longer than choosing the target
            return await self._infer(request, context, None)
        with self._mirrored(request, context, is_stream=False) as kept:
            response = await self._infer(request, context, kept)
            if kept is not None:
                kept.responses.append(response)
            return response

    async def _infer(
        self, request: InferRequest, context: RequestContext, kept: KeptInference | None
    ) -> InferResponse:
        target = self._choose_target(request, context, kept)
        try:
            return await target.infer(request, context)
        except GatewayError as error:
            fallback = self._fallback_after(error, request, context, kept)
            if fallback is None:
                raise
            return await fallback.infer(request, context)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        with self._mirrored(request, context, is_stream=True) as kept:
            async with aclosing(self._stream(request, context, kept)) as responses:
                async for response in responses:
                    if kept is not None:
                        kept.keep(response)
                    yield response

    async def _stream(
        self, request: InferRequest, context: RequestContext, kept: KeptInference | None
    ) -> AsyncGenerator[InferResponse, None]:
        has_response = False
        target = self._choose_target(request, context, kept)
        try:
            async with aclosing(target.stream(request, context)) as responses:
                async for response in responses:
                    has_response = True
                    yield response
        except GatewayError as error:
            fallback = None if has_response else self._fallback_after(error, request, context, kept)
            if fallback is None:
                raise
        else:
            return
        async with aclosing(fallback.stream(request, context)) as responses:
            async for response in responses:
                yield response

    def _choose_target(
        self, request: InferRequest, context: RequestContext, kept: KeptInference | None
    ) -> RoutePlan:
        target = self._own
        if self._targets:
            key = f"{self._label}\0{self._split_key(request, context)}"
            index = pick_target(self._percentages, key)
            if index is not None:
                target = self._targets[index]
                target.binding.apply_to(context)
        if kept is not None:
            kept.target = target
        return target

    def _fallback_after(
        self,
        error: GatewayError,
        request: InferRequest,
        context: RequestContext,
        kept: KeptInference | None,
    ) -> RoutePlan | None:
        """Return the fallback for ``request`` after ``error``, and apply its binding to
        ``context``. Return None if the request must not use a fallback."""
        fallback = self._fallback
        if fallback is None or error.kind is not Kind.CONNECT or sequence_key(request) is not None:
            return None
        self._counters.fallbacks += 1
        fallback.binding.apply_to(context)
        if kept is not None:
            kept.target = fallback
        return fallback

    @contextmanager
    def _mirrored(
        self, request: InferRequest, context: RequestContext, *, is_stream: bool
    ) -> Iterator[KeptInference | None]:
        """Mirror ``request`` after the block in which the caller serves it. Yield an object that
        keeps the served responses, or None if the responses are not compared."""
        compared, kept = self._compared, None
        if compared is not None and self._is_mirrored(request, context):
            kept = compared.keep(request, context, is_stream=is_stream)
        try:
            yield kept
        except BaseException as error:
            if kept is not None:
                kept.fail(error)
            raise
        finally:
            self._send_mirror(request, context, kept, is_stream=is_stream)

    def _is_mirrored(self, request: InferRequest, context: RequestContext) -> bool:
        """Return whether to mirror ``request``. Requests with shared memory are not mirrored,
        because the client may reuse the memory before the copy is sent."""
        if self._mirror is None or uses_shared_memory(request):
            return False
        key = f"{self._label}\0mirror\0{self._split_key(request, context)}"
        return pick_target(self._mirror_percentages, key) is not None

    def _send_mirror(
        self,
        request: InferRequest,
        context: RequestContext,
        kept: KeptInference | None,
        *,
        is_stream: bool,
    ) -> None:
        mirror = self._mirror
        if kept is not None:
            if self._equals_mirror(kept.target):
                kept.release()  # comparing a server with itself proves nothing
            else:
                self._send_compared(kept)
            return
        if mirror is None or self._compared is not None or not self._is_mirrored(request, context):
            return
        size = data_bytes(request.inputs)
        memory = self._mirror_sender.admit(request, size, context.memory)
        if memory is not None:
            child = copy_context(context, memory)
            mirror.binding.apply_to(child)
            send = _discard_stream if is_stream else RoutePlan.infer
            self._mirror_sender.send(request, size, partial(send, mirror, request, child), memory)

    def _equals_mirror(self, target: RoutePlan | None) -> bool:
        """Return whether ``target`` has the mirror's backend and names. The result is false for the
        route's own backend, so that a mirror to the same backend measures the backend's noise."""
        mirror = self._mirror
        if mirror is None or target is None or target is self._own:
            return False
        route, mirror_route = target.binding.route, mirror.binding.route
        return (route.backend, route.rewrite) == (mirror_route.backend, mirror_route.rewrite)

    def _send_compared(self, kept: KeptInference) -> None:
        """Send a copy of the inference to the mirror, and compare the responses."""
        compared = self._compared
        assert compared is not None
        exchange = kept.exchange()
        kept.release()
        request, size = exchange.request, exchange.size
        memory = self._mirror_sender.admit(request, size, kept.context.memory)
        if memory is None:
            compared.comparer.count("dropped")
            return
        key = f"{self._label}\0baseline\0{self._split_key(request, kept.context)}"
        send = partial(compared.run, kept, exchange, key, memory)
        self._mirror_sender.send(request, size, send, memory)

    async def close(self) -> None:
        await self._mirror_sender.close()


def split_key(request: InferRequest, context: RequestContext, header: str) -> str:
    """Return the key that determines the target of ``request``: the sequence, else the value of
    ``header``, else the request id."""
    sequence = sequence_key(request)
    if sequence is not None:
        return hash_key(sequence)
    return context.headers.get(header) or context.request_id


def _compared_mirror(
    comparer: RouteComparer, mirror: RoutePlan, target: Callable[[str], RoutePlan]
) -> ComparedMirror:
    from infergate.gateway.compared_mirror import ComparedMirror  # noqa: PLC0415 - imported only if it is used

    baseline = comparer.baseline
    return ComparedMirror(
        comparer,
        mirror,
        target(baseline.backend) if baseline is not None and baseline.backend else None,
        0.0 if baseline is None else baseline.percent,
    )


async def _discard_stream(
    target: RoutePlan, request: InferRequest, context: RequestContext
) -> None:
    async with aclosing(target.stream(request, context)) as responses:
        async for _ in responses:
            pass
