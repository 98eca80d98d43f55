"""Traced versions of the steps of a request: parse, route, render and the wait for a helper.

Each class here replaces an untraced one where tracing is on, does the same and records spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

from infergate.codecs.base import ParsedRequest, SupportsPassThrough
from infergate.core.messages import InferRequest, InferResponse, Response
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.core.tracing import Tracer
from infergate.gateway.authorized import AuthorizedGateway
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.frontend import PassThrough, SupportsRawMessages, Translation
from infergate.gateway.gateway import Gateway
from infergate.gateway.route_binding import RouteBinding

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")

PARSE: Final = "parse"
ROUTE: Final = "route"
RENDER: Final = "render"
HELPER: Final = "helper"


class TracedGateway(Gateway):
    """Records a span for the route look-up and an event for each response of a stream."""

    def __init__(self, *arguments: Any, tracer: Tracer, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tracer: Final = tracer

    def bind(self, model: str, version: str, context: RequestContext) -> RouteBinding:
        """Find the route within a span."""
        with self._tracer.start_step(ROUTE):
            return super().bind(model, version, context)

    async def stream(
        self, request: InferRequest, binding: RouteBinding, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses and record an event for each."""
        async with aclosing(super().stream(request, binding, context)) as responses:
            async for result in responses:
                self._tracer.record_response(context)
                yield result


class TracedAuthorizedGateway(TracedGateway, AuthorizedGateway):
    """A gateway that traces and checks access."""


class TracedTranslation(Translation[Req, Resp]):
    """Records spans for parsing a request and building its response."""

    def __init__(
        self, codec_offload: CodecOffload[Req, Resp], gateway: Gateway, tracer: Tracer
    ) -> None:
        super().__init__(codec_offload, gateway)
        self._tracer: Final = tracer

    async def parse(self, wire: Req, context: RequestContext) -> ParsedRequest:
        """Parse the request within a span."""
        with self._tracer.start_step(PARSE):
            return await super().parse(wire, context)

    async def _build_response(
        self, response: Response, parsed: ParsedRequest, context: RequestContext
    ) -> Resp:
        with self._tracer.start_step(RENDER):
            return await super()._build_response(response, parsed, context)


class TracedPassThrough(PassThrough[Req, Resp]):
    """Records spans for checking a message and rewriting its response."""

    def __init__(
        self,
        codec: SupportsPassThrough[Req, Resp],
        codec_offload: CodecOffload[Req, Resp],
        backend: SupportsRawMessages,
        translation: Translation[Req, Resp],
        tracer: Tracer,
    ) -> None:
        super().__init__(codec, codec_offload, backend, translation)
        self._validate = _with_span(tracer, PARSE, codec.validate)
        self._rewrite_response = _with_span(tracer, RENDER, codec.rewrite_response)


def _with_span(tracer: Tracer, name: str, function: Callable[..., T]) -> Callable[..., T]:
    def done(*arguments: Any) -> T:
        with tracer.start_step(name):
            return function(*arguments)

    return done


class TracedPipelines:
    """Makes the traced pipelines. Implements ``PipelineFactory``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer: Final = tracer

    def make_translation(
        self, codec_offload: CodecOffload[Any, Any], gateway: Gateway
    ) -> Translation[Any, Any]:
        """Make a traced ``Translation``."""
        return TracedTranslation(codec_offload, gateway, self._tracer)

    def make_pass_through(
        self,
        codec: SupportsPassThrough[Any, Any],
        codec_offload: CodecOffload[Any, Any],
        backend: SupportsRawMessages,
        translation: Translation[Any, Any],
    ) -> PassThrough[Any, Any]:
        """Make a traced ``PassThrough``."""
        return TracedPassThrough(codec, codec_offload, backend, translation, self._tracer)


class TracedOffload:
    """Records a span for each use of a helper of ``offload``, including the wait for one."""

    def __init__(self, offload: Offload, tracer: Tracer) -> None:
        self._offload: Final = offload
        self._tracer: Final = tracer

    async def run(
        self, deadline: float | None, function: Callable[..., T], *arguments: Any, **claim: Any
    ) -> T:
        """Run ``function`` in a helper within a span."""
        with self._tracer.start_step(HELPER):
            return await self._offload.run(deadline, function, *arguments, **claim)
