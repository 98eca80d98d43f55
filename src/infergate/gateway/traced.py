"""The steps of a request that a trace tells: parse, route, render.

Each class here stands for another one where tracing is on, does the same, and tells of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

from infergate.codecs.base import Forwarding, Parsed
from infergate.core.aside import Aside
from infergate.core.call import Call
from infergate.core.messages import Answer, InferRequest, InferResponse
from infergate.core.tracing import Tracing
from infergate.gateway.bound import Bound
from infergate.gateway.frontend import Exchanging, Forward, Translate
from infergate.gateway.gateway import Gateway
from infergate.gateway.guarded import GuardedGateway
from infergate.gateway.labour import Labour

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")

PARSE: Final = "parse"
ROUTE: Final = "route"
RENDER: Final = "render"
HELPER: Final = "helper"


class TracedGateway(Gateway):
    """Tells how long it takes to find a route, and of each answer of a stream."""

    def __init__(self, *arguments: Any, tracing: Tracing, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tracing: Final = tracing

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """See Gateway."""
        with self._tracing.step(ROUTE):
            return super().bind(model, version, call)

    async def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """See Gateway."""
        async with aclosing(super().stream(request, bound, call)) as answers:
            async for answer in answers:
                self._tracing.answer(call)
                yield answer


class TracedGuardedGateway(TracedGateway, GuardedGateway):
    """Of one that guards."""


class TracedTranslate(Translate[Req, Resp]):
    """Tells how long reading a request and writing its answer take."""

    def __init__(self, labour: Labour[Req, Resp], gateway: Gateway, tracing: Tracing) -> None:
        super().__init__(labour, gateway)
        self._tracing: Final = tracing

    async def parse(self, wire: Req, call: Call) -> Parsed:
        """See Translate."""
        with self._tracing.step(PARSE):
            return await super().parse(wire, call)

    async def _built(self, answer: Answer, parsed: Parsed, call: Call) -> Resp:
        with self._tracing.step(RENDER):
            return await super()._built(answer, parsed, call)


class TracedForward(Forward[Req, Resp]):
    """Tells how long checking a message and readdressing its answer take."""

    def __init__(
        self,
        codec: Forwarding[Req, Resp],
        labour: Labour[Req, Resp],
        backend: Exchanging,
        otherwise: Translate[Req, Resp],
        tracing: Tracing,
    ) -> None:
        super().__init__(codec, labour, backend, otherwise)
        self._shield = _stepped(tracing, PARSE, codec.shield)
        self._relabel = _stepped(tracing, RENDER, codec.relabel)


def _stepped(tracing: Tracing, name: str, doing: Callable[..., T]) -> Callable[..., T]:
    def done(*arguments: Any) -> T:
        with tracing.step(name):
            return doing(*arguments)

    return done


class TracedWays:
    """Makes both ways of a route. Implements :class:`infergate.gateway.frontend.Ways`."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing: Final = tracing

    def translate(self, labour: Labour[Any, Any], gateway: Gateway) -> Translate[Any, Any]:
        """See Ways."""
        return TracedTranslate(labour, gateway, self._tracing)

    def forward(
        self,
        codec: Forwarding[Any, Any],
        labour: Labour[Any, Any],
        backend: Exchanging,
        otherwise: Translate[Any, Any],
    ) -> Forward[Any, Any]:
        """See Ways."""
        return TracedForward(codec, labour, backend, otherwise, self._tracing)


class TracedAside:
    """``aside`` that tells how long a helper took, with the wait for one."""

    def __init__(self, aside: Aside, tracing: Tracing) -> None:
        self._aside: Final = aside
        self._tracing: Final = tracing

    async def run(
        self, deadline: float | None, function: Callable[..., T], *arguments: Any, **claim: Any
    ) -> T:
        """See Aside."""
        with self._tracing.step(HELPER):
            return await self._aside.run(deadline, function, *arguments, **claim)
