"""Where else than to its own backend a route's inferences go.

*Rule 1.* Which way a request goes is told by its sequence, if it is of one; else by the value of
the header that the operator names; else by its id. So no sequence is torn apart.
*Rule 2.* Only what could not be sent to a route's backend goes to its fallback, and nothing of a
sequence: its state is elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Protocol

from infergate.backends.base import Backend
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.sequences import sequence_of
from infergate.core.tally import RouteTally
from infergate.gateway.bound import Bound
from infergate.gateway.mirror import Mirroring
from infergate.gateway.shared_memory import in_shared_memory
from infergate.routing.split import pick
from infergate.routing.table import Route


class Along(Protocol):
    """The gateway, as far as it is needed here."""

    def along(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """The answer along ``bound``, which is noted on ``call``. Raises GatewayError."""
        ...

    def stream_along(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """All answers. Raises GatewayError."""
        ...


class Branches:
    """Those of ``own``, a route with its backend."""

    def __init__(
        self, own: Bound, backends: Mapping[str, Backend], tally: RouteTally, gateway: Along
    ) -> None:
        route, mirror = own.route, own.route.mirror
        self._own: Final = own
        self._by: Final = route.split_by
        self._percentages: Final = tuple(each.percent for each in route.split)
        self._targets: Final = tuple(
            Bound(
                replace(route, backend=each.backend, rewrite=each.rewrite), backends[each.backend]
            )
            for each in route.split
        )
        self._fallback: Final = _along(route, route.fallback, backends)
        self._mirrored: Final = _along(route, mirror.backend if mirror else "", backends)
        self._share: Final = (mirror.percent if mirror else 0.0,)
        self._mirroring: Final = Mirroring(mirror.most if mirror else 0, tally)
        self._tally: Final = tally
        self._gateway: Final = gateway

    async def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """The answer to ``request``. Raises GatewayError."""
        try:
            try:
                return await self._gateway.along(request, self._choose(request, call), call)
            except GatewayError as error:
                otherwise = self._otherwise(error, request, call)
                if otherwise is None:
                    raise
            return await self._gateway.along(request, otherwise, call)
        finally:
            self._mirror(request, call, self._gateway.along)

    async def stream(
        self, request: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """All answers to ``request``. Raises GatewayError."""
        begun = False
        try:
            bound = self._choose(request, call)
            try:
                async with aclosing(self._gateway.stream_along(request, bound, call)) as answers:
                    async for answer in answers:
                        begun = True
                        yield answer
            except GatewayError as error:
                otherwise = None if begun else self._otherwise(error, request, call)
                if otherwise is None:
                    raise
            else:
                return
            async with aclosing(self._gateway.stream_along(request, otherwise, call)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._mirror(request, call, self._unheard)

    def _choose(self, request: InferRequest, call: Call) -> Bound:
        """Where ``request`` goes, noted on ``call``."""
        if not self._targets:
            return self._own
        index = pick(self._percentages, f"{self._own.label}\0{self._key(request, call)}")
        if index is None:
            return self._own
        self._targets[index].note(call)
        return self._targets[index]

    def _key(self, request: InferRequest, call: Call) -> str:
        sequence = sequence_of(request)
        if sequence is not None:
            return f"{sequence.model}\0{sequence.id}"
        return call.headers.get(self._by) or call.request_id

    def _otherwise(self, error: GatewayError, request: InferRequest, call: Call) -> Bound | None:
        """Where ``request`` goes after ``error``, noted on ``call``; None: nowhere."""
        bound = self._fallback
        if bound is None or error.kind is not Kind.CONNECT or sequence_of(request) is not None:
            return None
        self._tally.fallbacks += 1
        bound.note(call)
        return bound

    def _mirror(
        self,
        request: InferRequest,
        call: Call,
        ask: Callable[[InferRequest, Bound, Call], Awaitable[object]],
    ) -> None:
        """Send a copy of ``request``, where its route wants one, and forget it. What lies in shared
        memory may be gone by then."""
        bound = self._mirrored
        if bound is None or in_shared_memory(request):
            return
        key = f"{self._own.label}\0mirror\0{self._key(request, call)}"
        if pick(self._share, key) is None:
            return
        memory = self._mirroring.admit(request, call.memory)
        if memory is not None:
            copy = replace(call, deadline=None, whole=None, returned={}, memory=memory)
            bound.note(copy)
            self._mirroring.send(request, ask(request, bound, copy), memory)

    async def _unheard(self, request: InferRequest, bound: Bound, call: Call) -> None:
        async with aclosing(self._gateway.stream_along(request, bound, call)) as answers:
            async for _ in answers:
                pass

    async def close(self) -> None:
        """Give up the copies that are under way."""
        await self._mirroring.close()


def _along(route: Route, backend: str, backends: Mapping[str, Backend]) -> Bound | None:
    """``route`` to another backend; None where there is none."""
    return Bound(replace(route, backend=backend), backends[backend]) if backend else None
