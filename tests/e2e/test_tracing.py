"""Tests the traces that a collector receives over OTLP/HTTP, and collectors that fail or hang."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from e2e.running import Infergate, started_infergate
from faults.peer import get, post
from faults.watch import alive, until
from http_stand_in import QuietHandler, StandInServer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}'
CONFIG = """
tracing: {enabled: true}
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
"""


class Collector(StandInServer):
    """Records the exported traces."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.headers: list[str | None] = []

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resources(self) -> list[dict[str, str]]:
        return [
            {each.key: each.value.string_value for each in resource.resource.attributes}
            for request in list(self.requests)
            for resource in request.resource_spans
        ]


class _Handler(QuietHandler):
    server: Collector

    def post(self) -> None:
        body = self.body()
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        self.server.headers.append(self.headers.get("x-tenant"))
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        response = ExportTraceServiceResponse().SerializeToString()
        self.respond(200, response, {"content-type": "application/x-protobuf"})


def infer(address: str) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert post(address, "/v2/models/identity/infer", BODY, headers).status == 200


def test_a_collector_gets_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=us",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "shop-gateway",
            "OTEL_BSP_SCHEDULE_DELAY": "60000",  # spans are sent when the process ends
        }.items():
            monkeypatch.setenv(name, value)
        with started_infergate(CONFIG) as running:
            infer(running.http)
            until(lambda: TRACE in running.log.read_text(), "the request is logged")
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert {"infer *", "parse", "route", "render"} <= spans.keys()
    request = spans["infer *"]
    assert request.parent_span_id.hex() == PARENT
    assert request.kind == Span.SPAN_KIND_SERVER
    fields = {each.key: each.value.string_value for each in request.attributes}
    assert fields["infergate.model"] == "identity"
    assert fields["infergate.outcome"] == "ok"
    for name in ("parse", "route", "render"):
        step = spans[name]
        assert step.parent_span_id == request.span_id
        assert request.start_time_unix_nano <= step.start_time_unix_nano
        assert step.end_time_unix_nano <= request.end_time_unix_nano
    assert set(collector.paths) == {"/v1/traces"}
    assert set(collector.headers) == {"us"}
    assert {each["service.name"] for each in collector.resources()} == {"shop-gateway"}


@pytest.mark.peers
def test_an_unreachable_collector_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with started_infergate(CONFIG) as running:
        for _ in range(20):
            infer(running.http)
        until(
            lambda: bool(exporter_log_lines(running.log.read_text())),
            "the exporter reports the failure",
            200,
        )
        lines = exporter_log_lines(running.log.read_text())
        infer(running.http)
    assert {line["event"] for line in lines} == {"traces_not_sent"}
    assert all("OTEL_EXPORTER_OTLP_ENDPOINT" in line["advice"] for line in lines)


@pytest.mark.peers
def test_every_worker_exports_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
        with started_infergate(CONFIG + "workers: 2\n") as running:
            for _ in range(8):
                infer(running.http)
            # A worker that has not reported yet is missing in the sum.
            line = 'infergate_limits{limit="in_flight"} 2048.0'
            until(lambda: line in scrape(running), "both workers report metrics", 200)
            lines = scrape(running)
    assert any(f'# {{trace_id="{TRACE}"}}' in line for line in lines)
    assert sum(span.name == "infer *" for span in collector.spans) == 8


@pytest.mark.peers
def test_a_hanging_collector_does_not_delay_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
        with started_infergate(CONFIG) as running:
            infer(running.http)
            os.kill(running.pid, signal.SIGTERM)
            until(lambda: not alive(running), "the process ends", 200)


def scrape(running: Infergate) -> list[str]:
    headers = {"accept": "application/openmetrics-text;version=1.0.0"}
    return get(running.admin, "/metrics", headers).body.decode().splitlines()


def exporter_log_lines(log: str) -> list[dict[str, str]]:
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [each for each in entries if each.get("logger", "").startswith("opentelemetry")]
