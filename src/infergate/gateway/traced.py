"""Traced versions of the steps of a request: parse, route, render and the wait for a helper.

Each class here replaces an untraced one where tracing is on, does the same and records spans.
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
    """Records a span for the route look-up and an event for each response of a stream."""

    def __init__(self, *arguments: Any, tracing: Tracing, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tracing: Final = tracing

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """Find the route within a span."""
        with self._tracing.step(ROUTE):
            return super().bind(model, version, call)

    async def stream(
        self, request: InferRequest, bound: Bound, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses and record an event for each."""
        async with aclosing(super().stream(request, bound, call)) as responses:
            async for result in responses:
                self._tracing.answer(call)
                yield result


class TracedGuardedGateway(TracedGateway, GuardedGateway):
    """A gateway that traces and checks access."""


class TracedTranslate(Translate[Req, Resp]):
    """Records spans for parsing a request and building its response."""

    def __init__(self, labour: Labour[Req, Resp], gateway: Gateway, tracing: Tracing) -> None:
        super().__init__(labour, gateway)
        self._tracing: Final = tracing

    async def parse(self, wire: Req, call: Call) -> Parsed:
        """Parse the request within a span."""
        with self._tracing.step(PARSE):
            return await super().parse(wire, call)

    async def _built(self, answer: Answer, parsed: Parsed, call: Call) -> Resp:
        with self._tracing.step(RENDER):
            return await super()._built(answer, parsed, call)


class TracedForward(Forward[Req, Resp]):
    """Records spans for checking a message and rewriting its response."""

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
    """Makes the traced pipelines. Implements ``PipelineFactory``."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing: Final = tracing

    def translate(self, labour: Labour[Any, Any], gateway: Gateway) -> Translate[Any, Any]:
        """Make a traced ``Translation``."""
        return TracedTranslate(labour, gateway, self._tracing)

    def forward(
        self,
        codec: Forwarding[Any, Any],
        labour: Labour[Any, Any],
        backend: Exchanging,
        otherwise: Translate[Any, Any],
    ) -> Forward[Any, Any]:
        """Make a traced ``PassThrough``."""
        return TracedForward(codec, labour, backend, otherwise, self._tracing)


class TracedAside:
    """Records a span for each use of a helper of ``offload``, including the wait for one."""

    def __init__(self, aside: Aside, tracing: Tracing) -> None:
        self._aside: Final = aside
        self._tracing: Final = tracing

    async def run(
        self, deadline: float | None, function: Callable[..., T], *arguments: Any, **claim: Any
    ) -> T:
        """Run ``function`` in a helper within a span."""
        with self._tracing.step(HELPER):
            return await self._aside.run(deadline, function, *arguments, **claim)
