"""An upstream that records each exchange as a span and propagates the trace to the server.

*Rule 1.* The request sender sets the ``traceparent`` of a message, which identifies the request.
Messages without a ``traceparent``, such as health checks, are not traced.
*Rule 2.* Each attempt is a separate exchange, so retries and hedges are sibling spans."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, Generic, TypeVar

from infergate.backends.message_access import MessageAccess
from infergate.core.tracing import TRACEPARENT, BackendSpan, Tracer
from infergate.transport.base import Endpoint, StreamingUpstream, SupportsDisconnect, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class TracedUpstream(Generic[Req, Resp]):
    """Wraps ``upstream``, which must support streams, for ``backend``. ``propagates`` means that
    the backend's servers receive the trace context."""

    def __init__(
        self,
        upstream: Upstream[Req, Resp],
        access: MessageAccess[Req, Resp],
        tracer: Tracer,
        backend: str,
        *,
        propagates: bool,
    ) -> None:
        self._upstream: Final = upstream
        self._access: Final = access
        self._tracer: Final = tracer
        self._backend: Final = backend
        self._propagates: Final = propagates

    @contextmanager
    def _span(self, wire: Req, endpoint: Endpoint) -> Iterator[tuple[Req, BackendSpan | None]]:
        """Start and end the span of an exchange. Yield the request to send, and the span or
        None."""
        traceparent = self._access.request_headers(wire).get(TRACEPARENT)
        span = None
        if traceparent is not None:
            span = self._tracer.start_backend_span(traceparent, self._backend, str(endpoint))
            wire = self._with_trace(wire, span)
        if span is None:
            yield wire, None
            return
        try:
            yield wire, span
        except GeneratorExit:  # the consumer closed the stream, which is not a failure
            span.end()
            raise
        except BaseException as error:
            span.end(error)
            raise
        span.end()

    async def exchange(self, wire: Req, endpoint: Endpoint, timeout: float) -> Resp:
        with self._span(wire, endpoint) as (request, span):
            response = await self._upstream.exchange(request, endpoint, timeout)
            if span is not None:
                span.record_status(self._access.response_status(response))
            return response

    async def stream(
        self, wire: Req, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp, None]:
        upstream = self._upstream
        assert isinstance(upstream, StreamingUpstream)
        with self._span(wire, endpoint) as (request, span):
            async with aclosing(upstream.stream(request, endpoint, timeout)) as responses:
                async for response in responses:
                    if span is not None:
                        span.record_status(self._access.response_status(response))
                        span.record_message()
                    yield response

    def _with_trace(self, wire: Req, span: BackendSpan | None) -> Req:
        """Return a copy of ``wire`` with the ``traceparent`` of ``span`` or, if the trace is not
        propagated, without ``traceparent``. Other attempts may use ``wire``, so it is not changed.
        If the trace is propagated but there is no span, return ``wire``."""
        if span is None and self._propagates:
            return wire
        headers = dict(self._access.request_headers(wire))
        if span is None or not self._propagates:
            del headers[TRACEPARENT]
        else:
            headers[TRACEPARENT] = span.traceparent
        return self._access.with_request_headers(wire, headers)

    async def disconnect(self, endpoint: Endpoint) -> None:
        """Close the connections to ``endpoint`` if the upstream supports this."""
        if isinstance(self._upstream, SupportsDisconnect):
            await self._upstream.disconnect(endpoint)

    async def close(self) -> None:
        await self._upstream.close()
