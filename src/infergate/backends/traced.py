"""An upstream that records each exchange as a span and propagates the trace to the server.

*Rule 1.* The ``traceparent`` of a message, set by the request sender, identifies the request that
an exchange belongs to. Messages without it, such as health checks, are not traced.
*Rule 2.* Each attempt is an exchange of its own, so retries and hedges are sibling spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from infergate.backends.carriers import HeaderAccess
from infergate.core.tracing import TRACEPARENT, Asking, Tracing
from infergate.transport.base import Dropping, Endpoint, StreamUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class TracedUpstream(Generic[Req, Resp]):
    """Wraps an ``upstream`` of ``backend`` that supports streams. ``propagates``: its servers
    receive the trace context."""

    def __init__(
        self,
        upstream: Upstream[Req, Resp],
        headers: HeaderAccess[Req, Resp],
        tracing: Tracing,
        backend: str,
        *,
        tells: bool,
    ) -> None:
        self._upstream: Final = upstream
        self._headers: Final = headers
        self._tracing: Final = tracing
        self._backend: Final = backend
        self._tells: Final = tells

    async def exchange(self, wire: Req, endpoint: Endpoint, timeout: float) -> Resp:
        """Exchange messages, recorded as a span if the request is traced."""
        traceparent = self._headers.sent(wire).get(TRACEPARENT)
        if traceparent is None:
            return await self._upstream.exchange(wire, endpoint, timeout)
        span = self._tracing.ask(traceparent, self._backend, str(endpoint))
        request = self._told(wire, span)
        if span is None:
            return await self._upstream.exchange(request, endpoint, timeout)
        try:
            response = await self._upstream.exchange(request, endpoint, timeout)
        except BaseException as error:
            span.end(error)
            raise
        span.answered(self._headers.status(response))
        span.end()
        return response

    async def stream(
        self, wire: Req, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp, None]:
        """Stream messages, recorded as a span if the request is traced."""
        upstream = self._upstream
        assert isinstance(upstream, StreamUpstream)
        traceparent = self._headers.sent(wire).get(TRACEPARENT)
        span, request = None, wire
        if traceparent is not None:
            span = self._tracing.ask(traceparent, self._backend, str(endpoint))
            request = self._told(wire, span)
        failure: BaseException | None = None
        try:
            async with aclosing(upstream.stream(request, endpoint, timeout)) as responses:
                async for response in responses:
                    if span is not None:
                        span.answered(self._headers.status(response))
                        span.received()
                    yield response
        except GeneratorExit:  # the consumer closed the stream, which is no failure
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            if span is not None:
                span.end(failure)
            del failure  # its traceback refers to this frame

    def _told(self, wire: Req, asking: Asking | None) -> Req:
        """Return ``wire`` with the right trace header: a copy if it differs, because another
        attempt may be using ``wire``."""
        if asking is None and self._tells:
            return wire
        headers = dict(self._headers.sent(wire))
        if asking is None or not self._tells:
            del headers[TRACEPARENT]
        else:
            headers[TRACEPARENT] = asking.traceparent
        return self._headers.with_headers(wire, headers)

    async def drop(self, endpoint: Endpoint) -> None:
        """Close the connections to ``endpoint``, if the upstream can."""
        if isinstance(self._upstream, Dropping):
            await self._upstream.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()
