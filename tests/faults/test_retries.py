"""Tests retries: endpoints that refuse connections, truncate responses, decline requests or are
slow beside a healthy endpoint, and overloaded backends.

The tests run over HTTP and gRPC, with both engines. Every fault has its own two endpoints."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults import h2
from faults.low_limits import good
from faults.payloads import document, tensor
from faults.peer import (
    GOOD_BODY,
    Backend,
    Connection,
    Script,
    good_http,
    http_answer,
    post,
    scripted,
)
from faults.rpc import call, channel, infer_message, ok_response
from faults.scripted_backends import good_rpc
from faults.watch import assert_healthy, closes_descriptors, counted, metric, unharmed, until

FAULTS = ("refused", "broken", "declined", "silent", "outage", "slow", "full")
PROTOCOLS = {"rest": ("v2-rest", "http"), "grpc": ("v2-grpc", "grpc")}
LIMITS = {
    "outage": "limits: {retry_percent: 20, min_retries: 1}",
    "full": "limits: {max_requests: 1, max_queue: 1}",
}
ROUTES = {
    "plain": "timeout: 10s, retry: {times: 2}",
    "twice": "timeout: 10s, idempotent: true, retry: {times: 2}",
    "tries": "timeout: 10s, idempotent: true, retry: {times: 3, per_try_timeout: 100ms}",
    "hedged": "timeout: 10s, idempotent: true, hedge: {after: 50ms}",
    "short": "timeout: 200ms",
}
NEVER_EJECTED = "health: {checks: never}, outliers: {consecutive_errors: 0}"
"""Settings with which failing endpoints are never ejected."""
REQUEST_COUNT = 12
HEALTHY: dict[str, Script] = {"rest": good_http, "grpc": good_rpc}


@dataclass(frozen=True)
class Outcome:
    """A client's response: an HTTP status or gRPC code, and Retry-After with the body or text."""

    status: object
    details: str

    @property
    def is_good(self) -> bool:
        return self.status in (200, grpc.StatusCode.OK)


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    channel: grpc.Channel
    faulty: dict[str, Backend]
    good: dict[str, Backend]
    engine: str

    def send_request(self, kind: str, fault: str, route: str) -> Outcome:
        model = f"{route}.{fault}.{kind}"
        if kind == "grpc":
            status = call(self.channel, infer_message(model))
            retry_after = status.trailers.get("retry-after", "")
            return Outcome(status.code, f"{retry_after!s} {status.details}")
        response = post(self.gateway.http, f"/v2/models/{model}/infer", document(tensor()))
        return Outcome(
            response.status, f"{response.headers.get('retry-after', '')} {response.body.decode()}"
        )

    def send_requests(
        self, kind: str, fault: str, route: str, count: int = REQUEST_COUNT
    ) -> list[Outcome]:
        return [self.send_request(kind, fault, route) for _ in range(count)]

    def others(self) -> None:
        good(self.gateway)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.gateway, f"infergate_{name}", **labels)

    def connect(self) -> None:
        """Connect to every endpoint, and clear the recorded requests."""
        for name in self.good:
            fault, kind = name.split("-")
            backends = [self.good[name], *([] if fault == "refused" else [self.faulty[name]])]
            until(
                lambda n=(kind, fault, "plain"), b=backends: (  # type: ignore[misc]
                    self.send_request(*n).is_good and all(each.connections for each in b)
                ),
                "both endpoints are connected",
            )
            for each in backends:
                each.requests.clear()

    def retries(self, kind: str, fault: str, reason: str) -> float:
        return self.metric("retries_total", backend=f"{fault}-{kind}", reason=reason)


def _config(addresses: dict[str, tuple[str, str]]) -> str:
    lines = ["backends:", "  ours: {protocol: builtin}"]
    for name, (first, second) in addresses.items():
        fault, kind = name.split("-")
        protocol, scheme = PROTOCOLS[kind]
        lines.append(
            f"  {name}: {{protocol: {protocol}, profile: infergate, "
            f'endpoints: ["{scheme}://{first}", "{scheme}://{second}"], {NEVER_EJECTED}, '
            f"{LIMITS.get(fault, '')}}}"
        )
    lines += ["routes:", "  - {model: identity, backend: ours}"]
    for name in addresses:
        fault, kind = name.split("-")
        for route, keys in ROUTES.items():
            lines.append(
                f"  - {{model: {route}.{fault}.{kind}, backend: {name}, "
                f"rewrite: {{model: m}}, {keys}}}"
            )
    return "\n".join([*lines, "readiness: lenient", ""])


@pytest.fixture(scope="module", params=["own", "compat"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with ExitStack() as stack:
        unused = stack.enter_context(socket.socket())
        unused.bind(("127.0.0.1", 0))  # never listens
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        faulty, good, addresses = {}, {}, {}
        for fault in FAULTS:
            for kind in PROTOCOLS:
                name = f"{fault}-{kind}"
                good[name] = stack.enter_context(scripted(HEALTHY[kind]))
                faulty[name] = stack.enter_context(scripted(HEALTHY[kind]))
                first = nobody if fault == "refused" else faulty[name].address
                addresses[name] = (first, good[name].address)
        gateway = stack.enter_context(started_infergate(_config(addresses), engine=request.param))
        created = stack.enter_context(channel(gateway.grpc))
        harness = Harness(gateway, created, faulty, good, request.param)
        harness.connect()
        with unharmed(gateway, harness.others):
            yield harness
        assert_healthy(gateway)


over_http_and_grpc = pytest.mark.parametrize("kind", PROTOCOLS)


# ---- a failing endpoint beside a healthy endpoint --------------------------------------------


@over_http_and_grpc
def test_a_refused_connection_is_retried_on_another_endpoint(harness: Harness, kind: str) -> None:
    before = harness.retries(kind, "refused", "not_sent")
    assert all(outcome.is_good for outcome in harness.send_requests(kind, "refused", "plain"))
    assert harness.retries(kind, "refused", "not_sent") > before
    harness.others()


def _truncating(kind: str) -> Script:
    """Return a script that records a request, sends part of the response, and closes."""

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        backend.requests.append("truncated")
        connection.write(http_answer(GOOD_BODY)[:-9])

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        stream = server.call()
        backend.requests.append("truncated")
        server.send(h2.headers(stream), h2.data(stream, h2.message(ok_response())[:9]))

    return {"rest": http, "grpc": rpc}[kind]


@over_http_and_grpc
def test_a_truncated_response_is_retried_if_idempotent(harness: Harness, kind: str) -> None:
    faulty = harness.faulty[f"broken-{kind}"]
    faulty.use(_truncating(kind))
    with closes_descriptors(harness.gateway.pid):
        until(
            lambda: (
                all(
                    outcome.is_good for outcome in harness.send_requests(kind, "broken", "twice", 4)
                )
                and "truncated" in faulty.requests
            ),
            "the faulty endpoint received requests, and no client noticed",
        )
        assert harness.retries(kind, "broken", "broken") == len(faulty.requests)
        before = len(faulty.requests)
        outcomes = harness.send_requests(kind, "broken", "plain")
        failed = [each for each in outcomes if not each.is_good]
        assert len(failed) == len(faulty.requests) - before
        for each in failed:
            assert each.status in (502, grpc.StatusCode.INTERNAL)
            assert f"backend 'broken-{kind}'" in each.details
            assert "is incomplete" in each.details or "closed the connection" in each.details
        harness.others()
        faulty.use(HEALTHY[kind])


def _declining(kind: str) -> Script:
    def http(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            backend.requests.append("declined")
            connection.write(http_answer(b'{"error":"not now"}', "503 X"))

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        ends = ("grpc-status", "14"), ("grpc-message", "not now")
        while True:
            stream = server.call()
            backend.requests.append("declined")
            server.send(h2.headers(stream), h2.trailers(stream, *ends))

    return {"rest": http, "grpc": rpc}[kind]


@over_http_and_grpc
def test_a_declined_request_is_retried_if_idempotent(harness: Harness, kind: str) -> None:
    faulty = harness.faulty[f"declined-{kind}"]
    faulty.use(_declining(kind))
    until(
        lambda: (
            all(outcome.is_good for outcome in harness.send_requests(kind, "declined", "twice", 4))
            and "declined" in faulty.requests
        ),
        "the faulty endpoint received requests, and no client noticed",
    )
    before = len(faulty.requests)
    outcomes = harness.send_requests(kind, "declined", "plain")
    failed = [each for each in outcomes if not each.is_good]
    assert len(failed) == len(faulty.requests) - before
    assert all("not now" in each.details for each in failed)
    assert harness.retries(kind, "declined", "declined") == before
    faulty.use(HEALTHY[kind])


def test_an_unprocessed_call_counts_as_not_sent(harness: Harness) -> None:
    """REFUSED_STREAM means that the call was not processed (RFC 9113, 8.7)."""
    before = harness.retries("grpc", "silent", "not_sent")
    if harness.engine == "compat":
        pytest.skip("grpcio does not report REFUSED_STREAM")

    def refuses(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = server.call()
            backend.requests.append("refused")
            server.send(h2.frame(h2.RST_STREAM, 0, stream, (7).to_bytes(4, "big")))

    faulty = harness.faulty["silent-grpc"]
    faulty.use(refuses)
    until(
        lambda: (
            all(outcome.is_good for outcome in harness.send_requests("grpc", "silent", "plain", 4))
            and "refused" in faulty.requests
        ),
        "the faulty endpoint received requests, and no client noticed",
    )
    assert harness.retries("grpc", "silent", "not_sent") > before
    faulty.use(good_rpc)


@over_http_and_grpc
def test_a_slow_attempt_is_retried(harness: Harness, kind: str) -> None:
    faulty = harness.faulty[f"silent-{kind}"]
    hung = threading.Event()

    def silent(connection: Connection, backend: Backend) -> None:
        hung.set()
        connection.wait_closed()

    def silent_rpc(connection: Connection, backend: Backend) -> None:
        h2.Server(connection).call()
        silent(connection, backend)

    faulty.use({"rest": silent, "grpc": silent_rpc}[kind])
    with closes_descriptors(harness.gateway.pid):
        until(
            lambda: (
                all(
                    outcome.is_good for outcome in harness.send_requests(kind, "silent", "tries", 4)
                )
                and hung.is_set()
            ),
            "the faulty endpoint received requests, and no client noticed",
        )
        assert harness.retries(kind, "silent", "timeout") > 0
        harness.others()
        faulty.use(HEALTHY[kind])


def test_a_stream_is_retried_only_before_its_first_response(harness: Harness) -> None:
    backends = (harness.faulty["broken-grpc"], harness.good["broken-grpc"])
    inner = pb.ModelInferResponse.FromString(ok_response())
    message = pb.ModelStreamInferResponse(infer_response=inner).SerializeToString()
    request = pb.ModelInferRequest.FromString(infer_message("twice.broken.grpc"))
    arrived = threading.Event()

    def breaks_at_once(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        server.send(h2.headers(server.call()))
        backend.requests.append("stream")

    def breaks_after_one(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        stream = server.call()
        backend.requests.append("stream")
        server.send(h2.headers(stream), h2.data(stream, h2.message(message)))
        arrived.wait(20)

    def streamed(script: Script) -> tuple[int, str, int]:
        """Return the number of responses, the error after them, and the number of backend
        requests."""
        for backend in backends:
            backend.requests.clear()
            backend.use(script)
        arrived.clear()
        call = harness.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        responses, error = 0, ""
        for each in call(iter([request.SerializeToString()]), timeout=20):
            result = pb.ModelStreamInferResponse.FromString(each)
            error = result.error_message
            responses += not error
            arrived.set()
        return responses, error, sum(len(each.requests) for each in backends)

    before = harness.retries("grpc", "broken", "broken")
    responses, error, attempts = streamed(breaks_at_once)
    assert (responses, attempts) == (0, 3)
    assert harness.retries("grpc", "broken", "broken") == before + 2
    assert "is incomplete" in error or "closed the connection" in error
    responses, error, attempts = streamed(breaks_after_one)
    assert (responses, attempts) == (1, 1)
    assert "is incomplete" in error or "closed the connection" in error
    for backend in backends:
        backend.use(good_rpc)
    harness.others()


# ---- all endpoints fail ----------------------------------------------------------------------

AT_ONCE = 40


@over_http_and_grpc
def test_an_outage_causes_no_more_retries_than_the_budget(harness: Harness, kind: str) -> None:
    """All requests in progress fail together. Only as many are retried as the budget
    allows, and all fail."""
    backends = (harness.faulty[f"outage-{kind}"], harness.good[f"outage-{kind}"])
    name, together = f"outage-{kind}", threading.Barrier(AT_ONCE + 1)
    arrived = threading.Semaphore(AT_ONCE)

    def wait_for_all() -> None:
        if arrived.acquire(blocking=False):  # a first attempt waits for all other first attempts
            together.wait(20)

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        backend.requests.append("broke")
        wait_for_all()

    def rpc(connection: Connection, backend: Backend) -> None:
        # All calls share this connection, which breaks when they have arrived.
        server = h2.Server(connection)
        while sum(len(each.requests) for each in backends) < AT_ONCE:
            server.call()
            backend.requests.append("broke")

    for backend in backends:
        backend.use({"rest": http, "grpc": rpc}[kind])
        backend.requests.clear()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        pending = [
            clients.submit(harness.send_request, kind, "outage", "twice") for _ in range(AT_ONCE)
        ]
        if kind == "rest":
            together.wait(20)
        harness.others()
        outcomes = [each.result() for each in pending]
    assert not any(each.is_good for each in outcomes)
    assert all(f"backend '{name}'" in each.details for each in outcomes)
    sent = sum(len(each.requests) for each in backends)
    retries = harness.retries(kind, "outage", "broken")
    assert sent <= AT_ONCE + retries
    assert 1 <= retries <= AT_ONCE * 0.6
    assert harness.metric("retry_budget_exhausted_total", backend=name) >= AT_ONCE * 0.4
    for backend in backends:
        backend.use(HEALTHY[kind])
    until(
        lambda: harness.send_request(kind, "outage", "plain").is_good, "the endpoint responds again"
    )


# ---- slow endpoints --------------------------------------------------------------------------


@over_http_and_grpc
def test_a_hedge_wins_and_the_slow_attempt_is_cancelled(harness: Harness, kind: str) -> None:
    faulty, name = harness.faulty[f"slow-{kind}"], f"slow-{kind}"
    cancelled = threading.Event()

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        connection.wait_closed()  # over HTTP/1.1, closing is the only way to cancel
        cancelled.set()

    def rpc(connection: Connection, backend: Backend) -> None:
        connection.read(len(h2.PREFACE))
        connection.write(h2.frame(h2.SETTINGS, 0, 0))
        for each in h2.frames(connection.read):
            if each.kind == h2.RST_STREAM:
                assert int.from_bytes(each.payload, "big") == 8  # CANCEL
                cancelled.set()

    faulty.use({"rest": http, "grpc": rpc}[kind])
    with closes_descriptors(harness.gateway.pid):
        until(
            lambda: (
                all(outcome.is_good for outcome in harness.send_requests(kind, "slow", "hedged", 4))
                and cancelled.is_set()
            ),
            "the slow endpoint received requests, and no client noticed",
        )
        assert harness.metric("hedges_total", backend=name, outcome="won") >= 1
        harness.others()
        faulty.use(HEALTHY[kind])


# ---- overload --------------------------------------------------------------------------------


@over_http_and_grpc
def test_requests_queue_at_the_limit_and_are_rejected_beyond_the_queue(
    harness: Harness, kind: str
) -> None:
    name = f"full-{kind}"
    release = threading.Event()

    def http(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            backend.requests.append("received")
            release.wait(20)
            connection.write(http_answer(GOOD_BODY))

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = server.call()
            backend.requests.append("received")
            release.wait(20)
            server.send(h2.answer(stream, ok_response()))

    backends = (harness.faulty[name], harness.good[name])
    for backend in backends:
        backend.use({"rest": http, "grpc": rpc}[kind])

    def received() -> int:
        return sum(each.requests.count("received") for each in backends)

    def waiting() -> float:
        return harness.metric("queue_requests", backend=name)

    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(harness.send_request, kind, "full", "plain")
        until(lambda: received() == 1, "the first request is in progress")
        late = harness.send_request(kind, "full", "short")
        assert late.status in (504, grpc.StatusCode.DEADLINE_EXCEEDED)
        expected = f"backend '{name}': the deadline passed while the request waited in the queue"
        assert expected in late.details
        assert harness.metric("queue_refusals_total", backend=name, reason="expired") == 1
        second = clients.submit(harness.send_request, kind, "full", "plain")
        until(lambda: waiting() == 1, "the second request waits")
        for _ in range(3):
            rejected = harness.send_request(kind, "full", "plain")
            assert rejected.status in (503, grpc.StatusCode.UNAVAILABLE)
            assert (
                "at its limit of 1 concurrent requests, and its queue of 1 is full"
                in rejected.details
            )
            assert rejected.details.startswith("1 ")  # the value of Retry-After
        assert harness.metric("queue_refusals_total", backend=name, reason="full") == 3
        assert counted(harness.gateway, backend=name, outcome="overloaded") == 3
        harness.others()
        assert post(harness.gateway.http, "/v2/models/identity/ready", b"").status in (200, 405)
        assert received() == 1
        release.set()
        assert first.result().is_good
        assert second.result().is_good
    assert received() == 2
    assert waiting() == 0
    for backend in backends:
        backend.use(HEALTHY[kind])
