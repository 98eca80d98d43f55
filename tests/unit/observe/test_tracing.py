"""Traces of requests through gateways in this process, and tracing options of the environment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import TransportKind
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.codecs.registry import plugins
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.observe import tracing
from infergate.observe.tracing import OpenTelemetry
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway
from infergate.runtime.worker_group import WorkerGroup
from infergate.transport.base import Endpoint
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream
from waiting import until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
PROTOCOLS = ("v2-rest", "v2-grpc", "trtis-http", "trtis-grpc", "graphpipe")
FREE = {"address": "127.0.0.1:0"}
LISTENERS = {"http": FREE, "grpc": FREE, "admin": None}
QUIET = {"log": {"access": False}, "helpers": 0, "tracing": {"enabled": True}}


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def children(self, parent: str) -> list[ReadableSpan]:
        """Return the children of the span with the ID ``parent``."""
        return [
            each
            for each in self.all()
            if each.parent is not None and f"{each.parent.span_id:016x}" == parent
        ]

    def upstream(self, parent: ReadableSpan, backend: str) -> list[ReadableSpan]:
        """Return the children of ``parent`` that are requests to ``backend``."""
        name = f"upstream {backend}"
        return [each for each in self.children(id_of(parent)) if each.name == name]


def id_of(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    recorded = Spans()
    monkeypatch.setattr(tracing, "create_tracer", lambda: OpenTelemetry(recorded.provider))
    yield recorded
    recorded.provider.shutdown()


@asynccontextmanager
async def running(
    config: Mapping[str, Any], group: WorkerGroup | None = None
) -> AsyncIterator[Any]:
    gateway = assemble(Config.model_validate({**QUIET, **config}), group=group)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(0)


def builtin_config(**more: Any) -> dict[str, Any]:
    return {
        "listeners": LISTENERS,
        "backends": {"embedded": {"protocol": "builtin"}},
        "routes": ({"model": "*", "backend": "embedded"},),
        **more,
    }


def path(protocol: str, model: str) -> str:
    return f"/graphpipe/{model}" if protocol == "graphpipe" else ""


@asynccontextmanager
async def run_proxy(engine: str = "own", **backend: Any) -> AsyncIterator[RunningGateway]:
    """Run a gateway in front of another gateway, with a backend of each protocol."""
    async with (
        running(builtin_config(engine=engine)) as other,
        running(proxy_config(other, **backend) | {"engine": engine}) as gateway,
    ):
        yield gateway


def proxy_config(other: RunningGateway, **backend: Any) -> dict[str, Any]:
    """Return a configuration with a backend of each protocol, all at ``other``."""
    ports = {name: server.address for name, server in other.listeners.items()}
    backends: dict[str, Any] = {}
    for protocol in PROTOCOLS:
        transport = plugins()[protocol].transport_kind.value
        url = f"{transport}://{ports[transport]}{path(protocol, 'identity')}"
        profile = {"profile": "graphpipe-go"} if protocol == "graphpipe" else {}
        backends[protocol] = {"protocol": protocol, "endpoints": (url,), **profile, **backend}
    routes = [
        {"model": f"{each}.identity", "backend": each, "rewrite": {"model": "identity"}}
        for each in PROTOCOLS
    ]
    return {"listeners": LISTENERS, "backends": backends, "routes": tuple(routes)}


@asynccontextmanager
async def client(
    gateway: RunningGateway, protocol: str, model: str
) -> AsyncIterator[RemoteBackend[Any, Any]]:
    transport = plugins()[protocol].transport_kind
    address = gateway.listeners[transport.value].address
    endpoint = Endpoint(address.host, address.port, path=path(protocol, model))
    profile = TRITON if protocol.startswith("v2") else GENERIC
    server = BackendSettings("client", (endpoint,), profile=profile, forward_headers=tuple(HEADERS))
    codec: Any = plugins()[protocol].create({})
    if transport is TransportKind.HTTP:
        http: Any = HttpOrFrameUpstream(DEFAULT_LIMITS)
        backend = RemoteBackend(server, codec, http, HTTP_MESSAGES, DEFAULT_LIMITS)
    else:
        rpc: Any = GrpcioUpstream(DEFAULT_LIMITS)
        backend = RemoteBackend(server, codec, rpc, RPC_MESSAGES, DEFAULT_LIMITS)
    try:
        yield backend
    finally:
        await backend.close()


def request_for(model: str) -> InferRequest:
    data = np.array([1.5, 2.5], np.float32)
    return InferRequest(model, inputs=(tensor_from_array("INPUT0", Datatype.FP32, data),))


async def infer(gateway: RunningGateway, protocol: str, model: str, **headers: str) -> Any:
    context = RequestContext("test", headers={**HEADERS, **headers})
    async with client(gateway, protocol, model) as backend:
        return await backend.perform(request_for(model), context)


async def request_span(spans: Spans, operation: str, parent: str = PARENT) -> ReadableSpan:
    """Return a request's span, which ends just after the response."""

    def matching() -> list[ReadableSpan]:
        return [span for span in spans.children(parent) if span.name.startswith(operation)]

    await until(matching)
    (span,) = matching()
    return span


async def root_span(spans: Spans) -> ReadableSpan:
    """Return the span of an inference that begins a trace."""
    await until(lambda: any(span.name == "infer *" for span in spans.all()))
    root = next(span for span in spans.all() if span.name == "infer *")
    assert root.parent is None
    return root


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_a_trace_is_propagated_over_every_protocol(spans: Spans, engine: str) -> None:
    async with run_proxy(engine) as gateway:
        for protocol, backend in product(PROTOCOLS, PROTOCOLS):
            spans.exporter.clear()
            model = f"{backend}.identity"
            response = await infer(gateway, protocol, model)
            assert isinstance(response, InferResponse)
            request = await request_span(spans, f"infer {model}")
            assert request.kind is SpanKind.SERVER
            assert attributes(request)["infergate.protocol"] == protocol
            assert attributes(request)["infergate.backend_protocol"] == backend
            assert attributes(request)["infergate.outcome"] == "ok"
            assert request.status.status_code is StatusCode.UNSET
            child_names = {each.name for each in spans.children(id_of(request))}
            assert {"parse", "route", "render"} <= child_names
            upstream = [
                each
                for each in spans.upstream(request, backend)
                if any(s.name == "infer *" for s in spans.children(id_of(each)))
            ]
            assert len(upstream) == 1, (protocol, backend, child_names)
            assert upstream[0].kind is SpanKind.CLIENT
            assert f"{upstream[0].context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_each_request_of_a_stream_is_a_span(spans: Spans, engine: str) -> None:
    async with running(builtin_config(engine=engine)) as gateway:
        assert await count_responses(gateway, "v2-grpc", 3) == 3
        request = await request_span(spans, "stream_infer")
        assert attributes(request)["infergate.messages"] in {3, 4}
        assert {"parse", "route"} <= {each.name for each in spans.children(id_of(request))}


def events(span: ReadableSpan) -> list[tuple[str, object, object]]:
    return [
        (each.name, fields["rpc.message.type"], fields["rpc.message.id"])
        for each in span.events
        if (fields := each.attributes or {})
    ]


async def count_responses(gateway: RunningGateway, protocol: str, count: int) -> int:
    inputs = (
        tensor_from_array("IN", Datatype.INT32, np.arange(count, dtype=np.int32)),
        tensor_from_array("DELAY", Datatype.UINT32, np.zeros(count, np.uint32)),
    )
    context = RequestContext("test", headers=HEADERS)
    async with client(gateway, protocol, "repeat") as backend:
        responses: AsyncGenerator[Any, None] = backend.stream(
            InferRequest("repeat", inputs=inputs), context
        )
        async with aclosing(responses):
            return len([each async for each in responses])


@pytest.mark.parametrize("protocol", ["v2-rest", "v2-grpc"])
@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_each_response_of_a_stream_is_an_event(
    spans: Spans, engine: str, protocol: str
) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(running(builtin_config(engine=engine)))
        url = f"grpc://{other.listeners['grpc'].address}"
        server = {"protocol": "v2-grpc", "profile": "triton", "endpoints": (url,)}
        routes = ({"model": "*", "backend": "server"},)
        proxy = {"listeners": LISTENERS, "backends": {"server": server}, "routes": routes}
        gateway = await stack.enter_async_context(running({**proxy, "engine": engine}))
        assert await count_responses(gateway, protocol, 3) == 3
        request = await request_span(spans, "stream_infer")
        assert events(request) == [("rpc.message", "SENT", number) for number in (1, 2, 3)]
        received = [each for span in spans.upstream(request, "server") for each in events(span)]
        assert received[:3] == [("rpc.message", "RECEIVED", number) for number in (1, 2, 3)]
        assert len(received) <= 4, "at most one more event, for the end of the stream"
        spans.exporter.clear()
        assert await count_responses(gateway, protocol, 200) == 200
        request = await request_span(spans, "stream_infer")
        assert [number for _, _, number in events(request)] == list(range(1, 65))
        assert attributes(request)["infergate.messages"] in {200, 201}


async def test_a_unary_request_has_no_message_events(spans: Spans) -> None:
    async with running(builtin_config()) as gateway:
        for protocol in ("v2-rest", "v2-grpc"):
            spans.exporter.clear()
            await infer(gateway, protocol, "identity")
            assert events(await request_span(spans, "infer")) == []


async def test_a_request_with_an_invalid_traceparent_starts_a_new_trace(spans: Spans) -> None:
    async with running(builtin_config()) as gateway:
        await infer(gateway, "v2-rest", "identity", traceparent="00-nonsense-01")
        await root_span(spans)


async def test_a_failed_request_has_an_error_type(spans: Spans) -> None:
    config = {
        "listeners": LISTENERS,
        "backends": {"gone": {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:1",)}},
        "routes": ({"model": "gone", "backend": "gone"},),
    }
    async with running(config) as gateway:
        with pytest.raises(GatewayError):
            await infer(gateway, "v2-rest", "gone")
        request = await request_span(spans, "infer gone")
        assert request.status.status_code is StatusCode.ERROR
        assert attributes(request)["error.type"] == "connect"
        attempts = spans.upstream(request, "gone")
        assert [attributes(each)["error.type"] for each in attempts] == ["connect", "connect"]
        spans.exporter.clear()
        with pytest.raises(GatewayError):
            await infer(gateway, "v2-rest", "unknown")
        request = await request_span(spans, "infer")
        assert request.status.status_code is StatusCode.UNSET, "it is a client's error"
        (route,) = (each for each in spans.children(id_of(request)) if each.name == "route")
        assert route.status.status_code is StatusCode.ERROR


UNSAMPLED = HEADERS["traceparent"][:-1] + "0"


async def test_an_unsampled_trace_stays_unsampled(spans: Spans) -> None:
    """Without a trace header, the second gateway would start and sample a new trace."""
    async with run_proxy() as gateway:
        for protocol, backend in product(("v2-rest", "v2-grpc"), PROTOCOLS):
            await infer(gateway, protocol, f"{backend}.identity", traceparent=UNSAMPLED)
        assert [each.name for each in spans.all() if "infer" in each.name] == []


async def test_a_backend_without_traceparent_in_forward_headers_gets_no_trace_headers(
    spans: Spans,
) -> None:
    async with run_proxy(forward_headers=("x-*",)) as gateway:
        for backend in ("v2-rest", "v2-grpc"):
            spans.exporter.clear()
            await infer(gateway, "v2-rest", f"{backend}.identity")
            request = await request_span(spans, f"infer {backend}")
            requests = spans.upstream(request, backend)
            assert requests
            assert all(spans.children(id_of(each)) == [] for each in requests)
            spans.exporter.clear()
            await infer(gateway, "v2-rest", f"{backend}.identity", traceparent=UNSAMPLED)
            await root_span(spans)


async def test_exemplars_and_access_log_lines_have_the_trace_id(
    spans: Spans, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    group = WorkerGroup()
    log = {"log": {"format": "json"}}
    async with running(builtin_config() | log, group) as gateway:
        await infer(gateway, "v2-rest", "identity")
        await request_span(spans, "infer")
        response = await group.metrics.scrape("application/openmetrics-text")
        text = b"".join(response.chunks).decode()
        lines = [line for line in text.splitlines() if f'# {{trace_id="{TRACE}"}}' in line]
        families = {line.partition("_bucket")[0] for line in lines}
        assert {"infergate_request_seconds", "infergate_gateway_seconds"} <= families
        assert b"trace_id" not in group.metrics.text()
    assert f'"trace_id":"{TRACE}"'.encode() in capfdbinary.readouterr().out


async def test_tracing_is_switched_on_and_off_by_a_reload(spans: Spans) -> None:
    off = builtin_config(tracing={"enabled": False})
    async with running(off) as gateway:
        await infer(gateway, "v2-rest", "identity")
        assert spans.all() == []
        await gateway.reload(Config.model_validate({**QUIET, **builtin_config()}))
        await infer(gateway, "v2-rest", "identity")
        await request_span(spans, "infer")
        spans.exporter.clear()
        await gateway.reload(Config.model_validate({**QUIET, **off}))
        await infer(gateway, "v2-rest", "identity")
        assert spans.all() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "unknown exporter 'pigeon'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "nonsense"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
def test_the_environment_selects_the_exporter(
    variables: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if expected:
        with pytest.raises(OSError, match=expected):
            tracing.create_tracer()
        return
    tracer = tracing.create_tracer()
    assert tracer is not None
    tracer.close()


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    for variable, value, name in (
        ("OTEL_SERVICE_NAME", "", "infergate"),
        ("OTEL_SERVICE_NAME", "shop", "shop"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=till", "till"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            tracer = tracing.create_tracer()
            assert tracer is not None
            assert tracer._provider.resource.attributes["service.name"] == name
            tracer.close()


def test_the_environment_can_disable_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert tracing.create_tracer() is None


def test_without_the_package_the_configuration_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'infergate\[otel\]'"):
        Config.model_validate(builtin_config(tracing={"enabled": True}))
    Config.model_validate(builtin_config(tracing={"enabled": False}))


async def test_a_bug_and_a_cancelled_request_end_their_spans(spans: Spans) -> None:
    tracer = OpenTelemetry(spans.provider)
    context = RequestContext("test", headers=HEADERS)
    tracer.start_request(context)
    before = context.headers
    tracer.start_request(context)
    assert context.headers is before, "the span has already started"
    for error in (ZeroDivisionError("secret"), asyncio.CancelledError()):
        with pytest.raises(type(error)), tracer.start_step("parse"):
            raise error
    context.record.record_error(GatewayError(Kind.INTERNAL, "internal error"))
    tracer.end_request(context)
    tracer.end_request(RequestContext("test"))
    (request,) = spans.children(PARENT)
    types = list(map(attributes, spans.children(id_of(request))))
    assert types == [{"error.type": "ZeroDivisionError"}, {"error.type": "cancelled"}]
    assert all(not each.events for each in spans.all()), "no exception is recorded in full"
    assert tracer.start_backend_span("nonsense", "b", "e") is None
