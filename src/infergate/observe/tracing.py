"""Spans of requests, by OpenTelemetry. Loaded only where tracing is on (docs/decisions/0030).

*Rule 1.* What the environment says by OpenTelemetry's variables holds: sampler, exporter, resource,
batches. A request that comes with a ``traceparent`` is sampled as that says, unless the sampler is
another.
*Rule 2.* A span's attributes are what the access log tells. Tensors, headers and secrets are none
of them.
*Rule 3.* Nobody waits for a collector: spans are sent by a thread, and dropped where it lags.
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
"""Characters of a client's text."""
_MOST_MESSAGES: Final = 64
"""Of one stream that are events; a stream of tokens may have thousands. The first ones, for the SDK
would keep the last: how long the first took is what is looked for."""
_MESSAGE: Final = "rpc.message"
"""Such an event, in OpenTelemetry's conventions, as are its attributes."""
_LAST: Final = 5.0
"""Seconds that the last spans have to be sent."""
_NOTHING: Final = Context()
_NO_STEP: Final[AbstractContextManager[None]] = nullcontext()
_IS_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SAMPLED: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-01")
"""What ``begin`` has requests of traces tell that are sampled."""
_FAULTS: Final = frozenset(
    each.value
    for each in (
        Kind.OVERLOADED,
        Kind.NO_BACKEND,
        Kind.CONNECT,
        Kind.TIMEOUT,
        Kind.BACKEND_GARBAGE,
        Kind.BACKEND_ERROR,
        Kind.INTERNAL,
    )
)
"""Outcomes that are errors of a server's span. What a client does wrong is none (OpenTelemetry's
conventions for HTTP: 4xx are left unset)."""
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_GROUP: Final = "opentelemetry_traces_exporter"
"""Where packages tell of exporters."""


class _Trace:
    """A request's span."""

    __slots__ = ("id", "span")

    def __init__(self, span: Span) -> None:
        context = span.get_span_context()
        self.span: Final = span
        self.id: Final = f"{context.trace_id:032x}" if context.trace_flags.sampled else ""


class OpenTelemetry:
    """Implements :class:`infergate.core.tracing.Tracing` by the spans of ``provider``."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider: Final = provider
        self._tracer: Final = provider.get_tracer(_NAME, __version__)
        self._propagator: Final = TraceContextTextMapPropagator()
        self._current: Final[ContextVar[Span]] = ContextVar("span", default=INVALID_SPAN)
        """The span of the request that a task serves."""

    def begin(self, call: Call) -> None:
        """See Tracing."""
        if call.trace is not None:
            return
        parent = self._propagator.extract(call.headers, _NOTHING)
        started = time.time_ns() - round((time.monotonic() - call.started) * 1e9)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER, start_time=started)
        call.trace = _Trace(span)
        call.headers = {**call.headers, TRACEPARENT: _told(span.get_span_context())}
        self._current.set(span)

    def step(self, name: str) -> AbstractContextManager[None]:
        """See Tracing."""
        request = self._current.get()
        if not request.is_recording():
            return _NO_STEP
        return _step(self._tracer.start_span(name, set_span_in_context(request, _NOTHING)))

    def ask(self, traceparent: str, backend: str, endpoint: str) -> Asking | None:
        """See Tracing."""
        told = _SAMPLED.fullmatch(traceparent)
        if told is None:
            return None
        trace, parent = (int(each, 16) for each in told.groups())
        context = SpanContext(trace, parent, is_remote=False, trace_flags=_IS_SAMPLED)
        within = set_span_in_context(NonRecordingSpan(context), _NOTHING)
        attributes = {"infergate.backend": backend, "server.address": endpoint}
        return _Asking(
            self._tracer.start_span(f"upstream {backend}", within, SpanKind.CLIENT, attributes)
        )

    def answer(self, call: Call) -> None:
        """See Tracing."""
        if isinstance(call.trace, _Trace) and call.messages is not None:
            _tell_message(call.trace.span, "SENT", call.messages + 1)

    def end(self, call: Call) -> None:
        """See Tracing."""
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
        """See Tracing. What is not sent within ``_LAST`` is lost with a collector that hangs."""
        ending = threading.Thread(
            target=self._provider.shutdown, name="infergate-tracing", daemon=True
        )
        ending.start()
        ending.join(_LAST)


def _tell_message(span: Span, kind: str, number: int) -> None:
    """``kind`` is SENT or RECEIVED, ``number`` from 1 on."""
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
    """Implements :class:`infergate.core.tracing.Asking`."""

    __slots__ = ("_received", "_span", "_status")

    def __init__(self, span: Span) -> None:
        self._span: Final = span
        self._status: int | None = None
        self._received = 0

    @property
    def traceparent(self) -> str:
        """See Asking."""
        return _told(self._span.get_span_context())

    def answered(self, status: int) -> None:
        """See Asking."""
        self._status = status

    def received(self) -> None:
        """See Asking."""
        self._received += 1
        _tell_message(self._span, "RECEIVED", self._received)

    def end(self, error: BaseException | None = None) -> None:
        """See Asking."""
        if self._status is not None:
            self._span.set_attribute("infergate.status", self._status)
        if error is not None:
            _blame(self._span, error)
        self._span.end()


def _told(context: SpanContext) -> str:
    """``context`` as W3C Trace Context has it."""
    flags = int(context.trace_flags) & 1
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _blame(span: Span, error: BaseException) -> None:
    if isinstance(error, GatewayError):
        span.set_attribute("error.type", error.kind.value)
        span.set_status(Status(StatusCode.ERROR, error.public[:_LONGEST]))
    elif isinstance(error, Exception):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
    else:  # nobody wants the answer any more
        span.set_attribute("error.type", Kind.CANCELLED.value)


def _attributes(call: Call) -> dict[str, str | int | float]:
    """What the access log tells, but for what it leaves out of text: what is empty."""
    told: dict[str, str | int | float] = {
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
        told["infergate.messages"] = call.messages
    if call.outcome in _FAULTS:
        told["error.type"] = call.outcome
    return {key: value for key, value in told.items() if value != ""}


def tracing() -> OpenTelemetry | None:
    """As the environment says; None where it switches all of it off. Raises OSError for an exporter
    that there is not."""
    if os.environ.get(_DISABLED, "").strip().lower() == "true":
        return None
    named = {} if _names_service() else {SERVICE_NAME: _NAME}
    resource = Resource.create({**named, SERVICE_VERSION: __version__})
    exporters = list(map(_exporter, _wanted()))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetry(provider)


def _names_service() -> bool:
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in given


def _wanted() -> list[str]:
    """The names of exporters; none: traces only go through."""
    named = (each.strip() for each in os.environ.get(_EXPORTER, "otlp").split(","))
    return [each for each in named if each not in {"", "none"}]


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        told = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
        name = "otlp_proto_grpc" if told == "grpc" else "otlp_proto_http"
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        there = ", ".join(sorted(entry_points(group=_GROUP).names))
        raise OSError(
            f"tracing: there is no exporter '{name}', which {_EXPORTER} or {_PROTOCOLS[-1]} wants; "
            f"there are: {there}"
        )
    made: SpanExporter = found.load()()
    return made
