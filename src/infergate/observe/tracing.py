"""Request spans with OpenTelemetry. Imported only if tracing is on (docs/decisions/0030).

*Rule 1.* OpenTelemetry's environment variables set the sampler, exporter, resource and batching.
With the default sampler, the sampling decision in a request's ``traceparent`` is followed.
*Rule 2.* A span has the fields of the access log line as attributes, and never tensors, headers or
secrets.
*Rule 3.* No request waits for a collector: a thread exports spans, and they are dropped if it falls
behind.
"""

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
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.tracing import TRACEPARENT, Asking

_NAME: Final = "infergate"
_LONGEST: Final = 256
"""Maximum number of characters of text from a client or an error."""
_MOST_MESSAGES: Final = 64
"""Maximum number of a stream's messages that become events; a token stream may have thousands. The
first ones are kept, since they show the time to the first token; the SDK's limit keeps the last."""
_MESSAGE: Final = "rpc.message"
"""The event of a message; it and its attributes follow OpenTelemetry's conventions."""
_LAST: Final = 5.0
"""Maximum time in seconds to export the remaining spans on close."""
_NOTHING: Final = Context()
_NO_STEP: Final[AbstractContextManager[None]] = nullcontext()
_IS_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SAMPLED: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-01")
"""The ``traceparent`` that ``start_request`` sets on sampled requests."""
_FAULTS: Final = frozenset(
    kind.value
    for kind in (
        Kind.OVERLOADED,
        Kind.NO_BACKEND,
        Kind.CONNECT,
        Kind.TIMEOUT,
        Kind.BACKEND_GARBAGE,
        Kind.BACKEND_ERROR,
        Kind.INTERNAL,
    )
)
"""Outcomes that set the status of a request's span to error. Errors of clients do not, as in
OpenTelemetry's conventions for HTTP, where a 4xx leaves the status unset."""
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_GROUP: Final = "opentelemetry_traces_exporter"
"""The entry point group of exporters."""


class _Trace:
    """The span of a request. ``id`` is the trace id, empty if it is not sampled."""

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

    def begin(self, call: Call) -> None:
        """Start the request's span, as a child of its ``traceparent`` header if it has one."""
        if call.trace is not None:
            return
        parent = self._propagator.extract(call.headers, _NOTHING)
        started = time.time_ns() - round((time.monotonic() - call.started) * 1e9)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER, start_time=started)
        call.trace = _Trace(span)
        call.headers = {**call.headers, TRACEPARENT: _told(span.get_span_context())}
        self._current.set(span)

    def step(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a span within the current request's span."""
        request = self._current.get()
        if not request.is_recording():
            return _NO_STEP
        return _step(self._tracer.start_span(name, set_span_in_context(request, _NOTHING)))

    def ask(self, traceparent: str, backend: str, endpoint: str) -> Asking | None:
        """Start the span of an exchange with a backend, or return None if it is not sampled."""
        match = _SAMPLED.fullmatch(traceparent)
        if match is None:
            return None
        trace, parent = (int(digits, 16) for digits in match.groups())
        context = SpanContext(trace, parent, is_remote=False, trace_flags=_IS_SAMPLED)
        within = set_span_in_context(NonRecordingSpan(context), _NOTHING)
        attributes = {"infergate.backend": backend, "server.address": endpoint}
        return _Asking(
            self._tracer.start_span(f"upstream {backend}", within, SpanKind.CLIENT, attributes)
        )

    def answer(self, call: Call) -> None:
        """Record the next response of a stream."""
        if isinstance(call.trace, _Trace) and call.messages is not None:
            _tell_message(call.trace.span, "SENT", call.messages + 1)

    def end(self, call: Call) -> None:
        """End the request's span, with the fields of the access log as attributes."""
        trace = call.trace
        if not isinstance(trace, _Trace):
            return
        span = trace.span
        if span.is_recording():
            span.update_name(f"{call.operation or 'request'} {call.route}".rstrip())
            span.set_attributes(_attributes(call))
            if call.outcome in _FAULTS:
                span.set_status(Status(StatusCode.ERROR, call.error[:_LONGEST]))
        span.end()

    def close(self) -> None:
        """Export the remaining spans, for at most ``_CLOSE_TIMEOUT_SECONDS``; the rest is lost."""
        thread = threading.Thread(
            target=self._provider.shutdown, name="infergate-tracing", daemon=True
        )
        thread.start()
        thread.join(_LAST)


def _tell_message(span: Span, kind: str, number: int) -> None:
    """Add the event of a message. ``kind`` is SENT or RECEIVED, ``number`` counts from 1."""
    if number <= _MOST_MESSAGES and span.is_recording():
        span.add_event(_MESSAGE, {"rpc.message.type": kind, "rpc.message.id": number})


@contextmanager
def _step(span: Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _blame(span, error)
        raise
    finally:
        span.end()


class _Asking:
    """Implements :class:`infergate.core.tracing.BackendSpan`."""

    __slots__ = ("_received", "_span", "_status")

    def __init__(self, span: Span) -> None:
        self._span: Final = span
        self._status: int | None = None
        self._received = 0

    @property
    def traceparent(self) -> str:
        """The header to send to the backend."""
        return _told(self._span.get_span_context())

    def answered(self, status: int) -> None:
        """Record the status of the backend's response."""
        self._status = status

    def received(self) -> None:
        """Record a message of a stream from the backend."""
        self._received += 1
        _tell_message(self._span, "RECEIVED", self._received)

    def end(self, error: BaseException | None = None) -> None:
        """End the span; ``error`` is the reason of a failure."""
        if self._status is not None:
            self._span.set_attribute("infergate.status", self._status)
        if error is not None:
            _blame(self._span, error)
        self._span.end()


def _told(context: SpanContext) -> str:
    """Format ``context`` as a ``traceparent`` header (W3C Trace Context)."""
    flags = int(context.trace_flags) & 1
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _blame(span: Span, error: BaseException) -> None:
    if isinstance(error, GatewayError):
        span.set_attribute("error.type", error.kind.value)
        span.set_status(Status(StatusCode.ERROR, error.public[:_LONGEST]))
    elif isinstance(error, Exception):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
    else:  # cancelled: the response is no longer needed
        span.set_attribute("error.type", Kind.CANCELLED.value)


def _attributes(call: Call) -> dict[str, str | int | float]:
    """Return the fields of the access log line as attributes, without empty text."""
    attributes: dict[str, str | int | float] = {
        "infergate.request_id": call.request_id[:_LONGEST],
        "client.address": call.peer,
        "infergate.protocol": call.protocol,
        "infergate.operation": call.operation,
        "infergate.model": call.model[:_LONGEST],
        "infergate.route": call.route,
        "infergate.backend": call.backend,
        "infergate.backend_protocol": call.backend_protocol,
        "infergate.way": call.way,
        "infergate.outcome": call.outcome,
        "infergate.identity": call.identity[:_LONGEST],
        "infergate.backend_seconds": call.backend_seconds,
        "infergate.bytes_in": call.bytes_in,
        "infergate.bytes_out": call.bytes_out,
    }
    if call.messages is not None:
        attributes["infergate.messages"] = call.messages
    if call.outcome in _FAULTS:
        attributes["error.type"] = call.outcome
    return {key: value for key, value in attributes.items() if value != ""}


def tracing() -> OpenTelemetry | None:
    """Create a tracer from the environment variables; None if they disable OpenTelemetry.

    Raises OSError for an unknown exporter.
    """
    if os.environ.get(_DISABLED, "").strip().lower() == "true":
        return None
    name = {} if _names_service() else {SERVICE_NAME: _NAME}
    resource = Resource.create({**name, SERVICE_VERSION: __version__})
    exporters = list(map(_exporter, _wanted()))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetry(provider)


def _names_service() -> bool:
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in attributes


def _wanted() -> list[str]:
    """Return the names of the exporters; with none, traces are only propagated."""
    names = (name.strip() for name in os.environ.get(_EXPORTER, "otlp").split(","))
    return [name for name in names if name not in {"", "none"}]


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        transport = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
        name = "otlp_proto_grpc" if transport == "grpc" else "otlp_proto_http"
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        installed = ", ".join(sorted(entry_points(group=_GROUP).names))
        raise OSError(
            f"tracing: unknown exporter '{name}' in {_EXPORTER} or {_PROTOCOLS[-1]}; "
            f"installed are: {installed}"
        )
    exporter: SpanExporter = found.load()()
    return exporter
