"""Tests the limits of concurrent requests and of their bytes. Requests beyond the limits are
rejected immediately in each protocol's error format; later requests are served. The admin listener
always responds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import grpc
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults import frames
from faults.low_limits import PATH, VALID_BODY, body, head, message
from faults.payloads import document, tensor
from faults.peer import Answer, Backend, Client, get, post, scripted, silent
from faults.rpc import Status, call, channel
from faults.watch import assert_healthy, metric, refused_by, unharmed, until

REQUESTS = 3
BYTES = 1_000_000
CONFIG = """
backends:
  depot: {{protocol: v2-rest, endpoints: ["http://{depot}"], profile: infergate}}
  ours: {{protocol: builtin}}
routes:
  - {{model: slow, backend: depot, rewrite: {{model: m}}}}
  - {{model: "*", backend: ours}}
limits: {{in_flight: {requests}, in_flight_bytes: {bytes}B, json: 32MiB}}
readiness: lenient
helpers: 0
"""
LARGE = body(elements=60_000)
assert 0.2 * BYTES < len(LARGE) < BYTES
_, LARGE_FRAME = frames.request_message(250_000)


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    raw: str
    depot: Backend

    def http(self, request: bytes) -> Answer:
        return post(self.gateway.http, PATH, request)

    def chunked(self, request: bytes) -> Answer:
        with Client(self.gateway.http) as client:
            client.send(head("Transfer-Encoding: chunked", length=None))
            client.send(b"%x\r\n%b\r\n" % (len(request), request))
            return client.answer()

    def grpc(self, size: int) -> Status:
        with channel(self.gateway.grpc) as rpc_channel:
            return call(rpc_channel, message(size))

    def frame(self, request: bytes) -> str:
        with Client(self.raw) as client:
            client.send(request)
            return frames.error_in(client)

    def admin(self) -> int:
        return get(self.gateway.admin, "/healthz").status


@pytest.fixture(scope="module")
def running() -> Iterator[Harness]:
    listener, raw = frames.raw_listener()
    with scripted(silent) as depot:
        config = CONFIG.format(depot=depot.address, requests=REQUESTS, bytes=BYTES)
        with started_infergate(config, LISTENERS + listener) as gateway:
            harness = Harness(gateway, raw, depot)
            assert harness.http(LARGE).status == 200
            assert harness.grpc(1).code is grpc.StatusCode.OK
            yield harness
            assert_healthy(gateway)


@pytest.fixture
def harness(running: Harness) -> Iterator[Harness]:
    """Run a gateway. Its admin listener must respond even at the limit."""
    with unharmed(running.gateway, running.admin):
        yield running


@contextmanager
def announced_body(harness: Harness, size: int) -> Iterator[None]:
    """Connect a client that announces a body of ``size`` bytes, and wait until it is admitted."""
    with Client(harness.gateway.http) as client:
        client.send(head(length=size) + b"{")
        until(
            lambda: metric(harness.gateway, "infergate_in_flight_bytes") == size,
            "the request is admitted",
        )
        yield


def test_requests_beyond_the_memory_budget_are_rejected(harness: Harness) -> None:
    with announced_body(harness, BYTES * 9 // 10):
        with refused_by(harness.gateway, "in_flight_bytes"):
            answer = harness.http(LARGE)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert str(BYTES) in answer.error
        with refused_by(harness.gateway, "in_flight_bytes"):
            assert harness.chunked(LARGE).status == 503
        with refused_by(harness.gateway, "in_flight_bytes"):
            status = harness.grpc(100_000)
            assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(BYTES) in status.details
        with refused_by(harness.gateway, "in_flight_bytes"):
            assert str(BYTES) in harness.frame(LARGE_FRAME)
        assert harness.http(VALID_BODY).status == 200, "a small request was rejected"
        assert harness.grpc(10).code is grpc.StatusCode.OK
        assert harness.frame(frames.FRAME) == ""
    until(
        lambda: metric(harness.gateway, "infergate_in_flight_bytes") == 0, "the memory is released"
    )
    assert harness.http(LARGE).status == 200
    assert harness.grpc(100_000).code is grpc.StatusCode.OK
    assert harness.frame(LARGE_FRAME) == ""


def test_requests_beyond_the_limit_in_flight_are_rejected(harness: Harness) -> None:
    request = document(tensor())
    with ExitStack() as stack:
        for _ in range(REQUESTS):
            client = stack.enter_context(Client(harness.gateway.http))
            client.send(head(length=len(request), path="/v2/models/slow/infer") + request)
        until(lambda: len(harness.depot.requests) == REQUESTS, "the requests are in progress")
        assert metric(harness.gateway, "infergate_in_flight_requests") == REQUESTS
        with refused_by(harness.gateway, "in_flight"):
            answer = harness.http(VALID_BODY)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        with refused_by(harness.gateway, "in_flight"):
            assert harness.grpc(1).code is grpc.StatusCode.UNAVAILABLE
        with refused_by(harness.gateway, "in_flight"):
            assert "limit of 3 requests" in harness.frame(frames.FRAME)
    until(lambda: metric(harness.gateway, "infergate_in_flight_requests") == 0, "the requests end")
    assert harness.http(VALID_BODY).status == 200
    assert harness.grpc(1).code is grpc.StatusCode.OK
    assert harness.frame(frames.FRAME) == ""


def test_many_more_requests_than_the_limit_are_served_or_rejected(harness: Harness) -> None:
    def send_request(number: int) -> int:
        return harness.http(VALID_BODY if number % 2 else LARGE).status

    limits = ("in_flight", "in_flight_bytes")
    before = sum(_rejections(harness, limit) for limit in limits)
    with ThreadPoolExecutor(16) as crowd:
        results = list(crowd.map(send_request, range(100)))
    assert set(results) <= {200, 503}
    assert 200 in results
    assert sum(_rejections(harness, limit) for limit in limits) == before + results.count(503)


def _rejections(harness: Harness, limit: str) -> float:
    return metric(harness.gateway, "infergate_refused_requests_total", limit=limit)
