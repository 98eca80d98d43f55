"""Where the inferences of a route go besides its own backend: splits, fallback and mirror.

- The target is chosen by hashing the request's sequence, if it has one, else the header that the
  operator names, else the request id. So all requests of a sequence go to one target.
- Only a request that could not be sent to the route's backend goes to the fallback, and never one
  of a sequence, whose state is on the original backend.
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
    """The part of the gateway that ``TrafficSplit`` uses."""

    def along(self, request: InferRequest, bound: Bound, call: Call) -> Awaitable[InferResponse]:
        """Return the response on ``binding``, which is noted on ``call``. Raises GatewayError."""
        ...

    def stream_along(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses. Raises GatewayError."""
        ...


class Branches:
    """The other targets of ``own``, a route with its backend."""

    def __init__(
        self, own: Bound, backends: Mapping[str, Backend], tally: RouteTally, gateway: Along
    ) -> None:
        route, mirror = own.route, own.route.mirror
        self._own: Final = own
        self._by: Final = route.split_by
        self._percentages: Final = tuple(target.percent for target in route.split)
        self._targets: Final = tuple(
            Bound(
                replace(route, backend=target.backend, rewrite=target.rewrite),
                backends[target.backend],
            )
            for target in route.split
        )
        self._fallback: Final = _along(route, route.fallback, backends)
        self._mirrored: Final = _along(route, mirror.backend if mirror else "", backends)
        self._share: Final = (mirror.percent if mirror else 0.0,)
        self._mirroring: Final = Mirroring(mirror.most if mirror else 0, tally)
        self._tally: Final = tally
        self._gateway: Final = gateway

    async def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Return the response to ``request``. Raises GatewayError."""
        try:
            try:
                return await self._gateway.along(request, self._choose(request, call), call)
            except GatewayError as error:
                fallback = self._otherwise(error, request, call)
                if fallback is None:
                    raise
            return await self._gateway.along(request, fallback, call)
        finally:
            self._mirror(request, call, self._gateway.along)

    async def stream(
        self, request: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``. Raises GatewayError."""
        has_response = False
        try:
            binding = self._choose(request, call)
            try:
                async with aclosing(
                    self._gateway.stream_along(request, binding, call)
                ) as responses:
                    async for response in responses:
                        has_response = True
                        yield response
            except GatewayError as error:
                fallback = None if has_response else self._otherwise(error, request, call)
                if fallback is None:
                    raise
            else:
                return
            async with aclosing(self._gateway.stream_along(request, fallback, call)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._mirror(request, call, self._unheard)

    def _choose(self, request: InferRequest, call: Call) -> Bound:
        """Return the target of ``request`` and note it on ``call``."""
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
        """Return the fallback for ``request`` after ``error`` and note it on ``call``; None if
        there is none."""
        binding = self._fallback
        if binding is None or error.kind is not Kind.CONNECT or sequence_of(request) is not None:
            return None
        self._tally.fallbacks += 1
        binding.note(call)
        return binding

    def _mirror(
        self,
        request: InferRequest,
        call: Call,
        ask: Callable[[InferRequest, Bound, Call], Awaitable[object]],
    ) -> None:
        """Send a copy of ``request`` if the route mirrors it. Requests in shared memory are not
        mirrored: the client may reuse the memory before the copy is sent."""
        binding = self._mirrored
        if binding is None or in_shared_memory(request):
            return
        key = f"{self._own.label}\0mirror\0{self._key(request, call)}"
        if pick(self._share, key) is None:
            return
        memory = self._mirroring.admit(request, call.memory)
        if memory is not None:
            copy = replace(call, deadline=None, whole=None, returned={}, memory=memory)
            binding.note(copy)
            self._mirroring.send(request, ask(request, binding, copy), memory)

    async def _unheard(self, request: InferRequest, bound: Bound, call: Call) -> None:
        async with aclosing(self._gateway.stream_along(request, bound, call)) as responses:
            async for _ in responses:
                pass

    async def close(self) -> None:
        """Cancel the copies in progress."""
        await self._mirroring.close()


def _along(route: Route, backend: str, backends: Mapping[str, Backend]) -> Bound | None:
    """Return ``route`` bound to another backend; None if ``backend`` is empty."""
    return Bound(replace(route, backend=backend), backends[backend]) if backend else None
