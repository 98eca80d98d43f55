"""Request spans with OpenTelemetry. This module is imported only if tracing is enabled
(docs/decisions/0030).

*Rule 1.* OpenTelemetry's environment variables set the sampler, exporter, resource and batching.
The default sampler follows the sampling decision in a request's ``traceparent``.

*Rule 2.* A request's span has most fields of the access log line as attributes. No span has
tensors, headers or secrets.

*Rule 3.* Requests never wait for a collector. A thread exports spans. If the collector is slow,
spans are dropped."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from infergate import __version__
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.tracing import TRACEPARENT, BackendSpan

_NAME: Final = "infergate"
_MAX_TEXT: Final = 256
"""Maximum number of characters of text from a client or an error."""
_MAX_MESSAGE_EVENTS: Final = 64
"""Maximum number of a stream's messages that become events; a token stream may have thousands of
messages. The first messages are kept, because they show the time to the first token. The SDK's own
limit would keep the last messages."""
_MESSAGE: Final = "rpc.message"
"""The name of a message's event. Name and attributes follow OpenTelemetry's conventions."""
_CLOSE_TIMEOUT_SECONDS: Final = 5.0
_EMPTY_CONTEXT: Final = Context()
_NO_STEP: Final[AbstractContextManager[None]] = nullcontext()
_SAMPLED_FLAGS: Final = TraceFlags(TraceFlags.SAMPLED)
_SAMPLED: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-01")
"""The ``traceparent`` that ``start_request`` sets on sampled requests."""
_SERVER_ERRORS: Final = frozenset(
    kind.value
    for kind in (
        Kind.OVERLOADED,
        Kind.NO_BACKEND,
        Kind.LOOP_DETECTED,
        Kind.CONNECT,
        Kind.TIMEOUT,
        Kind.BACKEND_GARBAGE,
        Kind.BACKEND_ERROR,
        Kind.INTERNAL,
    )
)
"""Outcomes that set the status of a request's span to error. Errors of clients leave the status
unset, as OpenTelemetry's conventions require for HTTP 4xx."""
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_GROUP: Final = "opentelemetry_traces_exporter"


class _RequestSpan:
    """The span of a request. ``id`` is the trace id, or empty if the trace is not sampled."""

    __slots__ = ("id", "span")

    def __init__(self, span: Span) -> None:
        context = span.get_span_context()
        self.span: Final = span
        self.id: Final = f"{context.trace_id:032x}" if context.trace_flags.sampled else ""


class OpenTelemetry:
    """Implements :class:`infergate.core.tracing.Tracer` with the spans of ``provider``."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider: Final = provider
        self._tracer: Final = provider.get_tracer(_NAME, __version__)
        self._propagator: Final = TraceContextTextMapPropagator()
        self._current: Final[ContextVar[Span]] = ContextVar("span", default=INVALID_SPAN)
        """The span of the request that the current task handles."""

    def start_request(self, context: RequestContext) -> None:
        """Start the request's span. If the request has a ``traceparent`` header, the span is a
        child of the client's span."""
        if context.trace is not None:
            return
        parent = self._propagator.extract(context.headers, _EMPTY_CONTEXT)
        started = time.time_ns() - round((time.monotonic() - context.record.started_at) * 1e9)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER, start_time=started)
        context.trace = _RequestSpan(span)
        context.headers = {**context.headers, TRACEPARENT: _traceparent(span.get_span_context())}
        self._current.set(span)

    def start_step(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a span within the current request's span."""
        request = self._current.get()
        if not request.is_recording():
            return _NO_STEP
        return _step(self._tracer.start_span(name, set_span_in_context(request, _EMPTY_CONTEXT)))

    def start_backend_span(
        self, traceparent: str, backend: str, endpoint: str
    ) -> BackendSpan | None:
        match = _SAMPLED.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, parent_id = (int(digits, 16) for digits in match.groups())
        context = SpanContext(trace_id, parent_id, is_remote=False, trace_flags=_SAMPLED_FLAGS)
        parent = set_span_in_context(NonRecordingSpan(context), _EMPTY_CONTEXT)
        attributes = {"infergate.backend": backend, "server.address": endpoint}
        return _ExchangeSpan(
            self._tracer.start_span(f"upstream {backend}", parent, SpanKind.CLIENT, attributes)
        )

    def record_response(self, context: RequestContext) -> None:
        count = context.record.response_count
        if isinstance(context.trace, _RequestSpan) and count is not None:
            _add_message_event(context.trace.span, "SENT", count + 1)

    def end_request(self, context: RequestContext) -> None:
        """End the request's span, with most fields of the access log line as attributes."""
        trace = context.trace
        if not isinstance(trace, _RequestSpan):
            return
        span = trace.span
        if span.is_recording():
            record = context.record
            span.update_name(f"{record.operation or 'request'} {record.route}".rstrip())
            span.set_attributes(_attributes(context))
            if record.outcome in _SERVER_ERRORS:
                span.set_status(Status(StatusCode.ERROR, record.error[:_MAX_TEXT]))
        span.end()

    def close(self) -> None:
        """Export the remaining spans for at most ``_CLOSE_TIMEOUT_SECONDS``. Spans that are not
        exported by then are lost."""
        thread = threading.Thread(
            target=self._provider.shutdown, name="infergate-tracing", daemon=True
        )
        thread.start()
        thread.join(_CLOSE_TIMEOUT_SECONDS)


def _add_message_event(span: Span, kind: str, number: int) -> None:
    """Add the event of a message. ``kind`` is SENT or RECEIVED. ``number`` counts messages from
    1."""
    if number <= _MAX_MESSAGE_EVENTS and span.is_recording():
        span.add_event(_MESSAGE, {"rpc.message.type": kind, "rpc.message.id": number})


@contextmanager
def _step(span: Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _set_error(span, error)
        raise
    finally:
        span.end()


class _ExchangeSpan:
    __slots__ = ("_received", "_span", "_status")

    def __init__(self, span: Span) -> None:
        self._span: Final = span
        self._status: int | None = None
        self._received = 0

    @property
    def traceparent(self) -> str:
        return _traceparent(self._span.get_span_context())

    def record_status(self, status: int) -> None:
        self._status = status

    def record_message(self) -> None:
        self._received += 1
        _add_message_event(self._span, "RECEIVED", self._received)

    def end(self, error: BaseException | None = None) -> None:
        if self._status is not None:
            self._span.set_attribute("infergate.status", self._status)
        if error is not None:
            _set_error(self._span, error)
        self._span.end()


def _traceparent(context: SpanContext) -> str:
    flags = int(context.trace_flags) & 1
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _set_error(span: Span, error: BaseException) -> None:
    if isinstance(error, GatewayError):
        span.set_attribute("error.type", error.kind.value)
        span.set_status(Status(StatusCode.ERROR, error.public[:_MAX_TEXT]))
    elif isinstance(error, Exception):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
    else:  # cancelled: the response is no longer needed
        span.set_attribute("error.type", Kind.CANCELLED.value)


def _attributes(context: RequestContext) -> dict[str, str | int | float]:
    record = context.record
    attributes: dict[str, str | int | float] = {
        "infergate.request_id": context.request_id[:_MAX_TEXT],
        "client.address": context.peer,
        "infergate.protocol": record.protocol,
        "infergate.operation": record.operation,
        "infergate.model": record.model[:_MAX_TEXT],
        "infergate.route": record.route,
        "infergate.backend": record.backend,
        "infergate.backend_protocol": record.backend_protocol,
        "infergate.pipeline": record.pipeline,
        "infergate.outcome": record.outcome,
        "infergate.identity": context.identity[:_MAX_TEXT],
        "infergate.backend_seconds": record.backend_seconds,
        "infergate.bytes_in": record.bytes_in,
        "infergate.bytes_out": record.bytes_out,
    }
    if record.response_count is not None:
        attributes["infergate.messages"] = record.response_count
    if record.outcome in _SERVER_ERRORS:
        attributes["error.type"] = record.outcome
    return {key: value for key, value in attributes.items() if value != ""}


def create_tracer() -> OpenTelemetry | None:
    """Create a tracer from the environment variables. Return None if they disable OpenTelemetry.
    Raises OSError for an unknown exporter."""
    if os.environ.get(_DISABLED, "").strip().lower() == "true":
        return None
    name = {} if _names_service() else {SERVICE_NAME: _NAME}
    resource = Resource.create({**name, SERVICE_VERSION: __version__})
    exporters = list(map(_exporter, _exporter_names()))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetry(provider)


def _names_service() -> bool:
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in attributes


def _exporter_names() -> list[str]:
    """Return the names of the exporters. Without exporters, traces are only propagated."""
    names = (name.strip() for name in os.environ.get(_EXPORTER, "otlp").split(","))
    return [name for name in names if name not in {"", "none"}]


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        transport = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
        name = "otlp_proto_grpc" if transport == "grpc" else "otlp_proto_http"
    entry_point = next(iter(entry_points(group=_GROUP, name=name)), None)
    if entry_point is None:
        installed = ", ".join(sorted(entry_points(group=_GROUP).names))
        raise OSError(
            f"tracing: unknown exporter '{name}' in {_EXPORTER} or {_PROTOCOLS[-1]}; "
            f"installed exporters: {installed}"
        )
    exporter: SpanExporter = entry_point.load()()
    return exporter
