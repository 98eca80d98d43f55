"""The interface to a tracing system.

If tracing is enabled, the gateway is assembled from tracing classes, so the request code need
not check. The W3C Trace Context header ``traceparent`` carries the trace from the client through
the gateway to the backends."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

from infergate.core.request_context import RequestContext

TRACEPARENT: Final = "traceparent"


class BackendSpan(Protocol):
    """The span of one exchange with a backend."""

    @property
    def traceparent(self) -> str:
        """The header value to send to the backend."""
        ...

    def record_status(self, status: int) -> None:
        """Record the HTTP or gRPC status of a response. For a stream, the last recorded status
        counts."""
        ...

    def record_message(self) -> None:
        """Record one more message of a stream."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the span, with ``error`` if the exchange failed."""
        ...


class Tracer(Protocol):
    """Records the spans of requests."""

    def start_request(self, context: RequestContext) -> None:
        """Start the span of a request; calling it again has no effect.

        Afterwards, the headers of ``context`` carry the trace, and the steps of the current task
        belong to this request."""
        ...

    def start_step(self, name: str) -> AbstractContextManager[None]:
        """Record the body of the ``with`` block as one step of the current task's request."""
        ...

    def start_backend_span(
        self, traceparent: str, backend: str, endpoint: str
    ) -> BackendSpan | None:
        """Start the span of an exchange with a backend. Return None if the trace is not sampled.

        ``start_request`` has set ``traceparent`` on the request."""
        ...

    def record_response(self, context: RequestContext) -> None:
        """Record one more response of a stream. ``context.record.response_count`` must not include
        this response yet."""
        ...

    def end_request(self, context: RequestContext) -> None:
        """End the span of a request, and add the facts in ``context.record`` to it."""
        ...

    def close(self) -> None:
        """Shut down. This may block until the recorded spans are exported."""
        ...
