"""An upstream that records each exchange as a span and propagates the trace to the server.

*Rule 1.* The request sender sets the ``traceparent`` of a message, which identifies the request.
Messages without a ``traceparent``, such as health checks, are not traced.
*Rule 2.* Each attempt is a separate exchange, so retries and hedges are sibling spans."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
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

    async def exchange(self, wire: Req, endpoint: Endpoint, timeout: float) -> Resp:
        traceparent = self._access.request_headers(wire).get(TRACEPARENT)
        if traceparent is None:
            return await self._upstream.exchange(wire, endpoint, timeout)
        span = self._tracer.start_backend_span(traceparent, self._backend, str(endpoint))
        request = self._with_trace(wire, span)
        if span is None:
            return await self._upstream.exchange(request, endpoint, timeout)
        try:
            response = await self._upstream.exchange(request, endpoint, timeout)
        except BaseException as error:
            span.end(error)
            raise
        span.record_status(self._access.response_status(response))
        span.end()
        return response

    async def stream(
        self, wire: Req, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp, None]:
        upstream = self._upstream
        assert isinstance(upstream, StreamingUpstream)
        traceparent = self._access.request_headers(wire).get(TRACEPARENT)
        span, request = None, wire
        if traceparent is not None:
            span = self._tracer.start_backend_span(traceparent, self._backend, str(endpoint))
            request = self._with_trace(wire, span)
        failure: BaseException | None = None
        try:
            async with aclosing(upstream.stream(request, endpoint, timeout)) as responses:
                async for response in responses:
                    if span is not None:
                        span.record_status(self._access.response_status(response))
                        span.record_message()
                    yield response
        except GeneratorExit:  # the consumer closed the stream, which is not a failure
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            if span is not None:
                span.end(failure)
            del failure  # the error's traceback refers to this frame

    def _with_trace(self, wire: Req, span: BackendSpan | None) -> Req:
        """Return ``wire`` with the trace header of ``span``. If the header has to be added, return
        a copy, because other attempts may use ``wire``."""
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
