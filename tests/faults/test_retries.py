"""Endpoints that refuse, break off, decline or are slow, beside one that is good, and backends that
are sent too much: what is tried again, what is not, and what clients are told. Over HTTP and gRPC,
by both engines; every fault has two endpoints of its own."""

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
from faults.behind import good_rpc
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
from faults.rpc import call, channel, good_answer, infer_message
from faults.watch import counted, descriptors_come_back, metric, unharmed, until, well

FAULTS = ("refused", "broken", "declined", "silent", "outage", "slow", "full")
PROTOCOLS = {"rest": ("v2-rest", "http"), "grpc": ("v2-grpc", "grpc")}
LIMITS = {
    "outage": "limits: {retry_percent: 20, retry_least: 1}",
    "full": "limits: {max_requests: 1, max_queue: 1}",
}
ROUTES = {
    "plain": "timeout: 10s, retry: {times: 2}",
    "twice": "timeout: 10s, idempotent: true, retry: {times: 2}",
    "tries": "timeout: 10s, idempotent: true, retry: {times: 3, per_try_timeout: 100ms}",
    "hedged": "timeout: 10s, idempotent: true, hedge: {after: 50ms}",
    "short": "timeout: 200ms",
}
ALONE = "health: {checks: never}, outliers: {consecutive_errors: 0}"
"""Else endpoints would be let alone that are to fail."""
MANY = 12


GOOD: dict[str, Script] = {"rest": good_http, "grpc": good_rpc}


@dataclass(frozen=True)
class Told:
    """What a client was told: an HTTP status or a gRPC code, and headers or details."""

    status: object
    words: str

    @property
    def is_good(self) -> bool:
        return self.status in (200, grpc.StatusCode.OK)


@dataclass(frozen=True)
class Site:
    gateway: Infergate
    channel: grpc.Channel
    faulty: dict[str, Backend]
    good: dict[str, Backend]
    engine: str

    def ask(self, kind: str, fault: str, route: str) -> Told:
        model = f"{route}.{fault}.{kind}"
        if kind == "grpc":
            status = call(self.channel, infer_message(model))
            return Told(status.code, status.details)
        told = post(self.gateway.http, f"/v2/models/{model}/infer", document(tensor()))
        return Told(told.status, f"{told.headers.get('retry-after', '')} {told.body.decode()}")

    def many(self, kind: str, fault: str, route: str, count: int = MANY) -> list[Told]:
        return [self.ask(kind, fault, route) for _ in range(count)]

    def others(self) -> None:
        asked = document(tensor(), tensor(name="INPUT1"))
        assert post(self.gateway.http, "/v2/models/identity/infer", asked).status == 200

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.gateway, f"infergate_{name}", **labels)

    def connected(self) -> None:
        """To each of the endpoints."""
        for name in self.good:
            fault, kind = name.split("-")
            backends = [self.good[name], *([] if fault == "refused" else [self.faulty[name]])]
            until(
                lambda n=(kind, fault, "plain"), b=backends: (  # type: ignore[misc]
                    self.ask(*n).is_good and all(each.connections for each in b)
                ),
                "it is connected",
            )
            for each in backends:
                each.requests.clear()

    def retries(self, kind: str, fault: str, reason: str) -> float:
        return self.metric("retries_total", backend=f"{fault}-{kind}", reason=reason)


def _config(addresses: dict[str, tuple[str, str]]) -> str:
    lines = ["backends:", "  ours: {protocol: builtin}"]
    for name, (one, two) in addresses.items():
        fault, kind = name.split("-")
        protocol, scheme = PROTOCOLS[kind]
        lines.append(
            f"  {name}: {{protocol: {protocol}, profile: infergate, "
            f'endpoints: ["{scheme}://{one}", "{scheme}://{two}"], {ALONE}, '
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
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        unused = stack.enter_context(socket.socket())
        unused.bind(("127.0.0.1", 0))  # never listens
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        faulty, good, addresses = {}, {}, {}
        for fault in FAULTS:
            for kind in PROTOCOLS:
                name = f"{fault}-{kind}"
                good[name] = stack.enter_context(scripted(GOOD[kind]))
                faulty[name] = stack.enter_context(scripted(GOOD[kind]))
                first = nobody if fault == "refused" else faulty[name].address
                addresses[name] = (first, good[name].address)
        gateway = stack.enter_context(started_infergate(_config(addresses), engine=request.param))
        made = stack.enter_context(channel(gateway.grpc))
        site = Site(gateway, made, faulty, good, request.param)
        site.connected()
        with unharmed(gateway, site.others):
            yield site
        well(gateway)


both = pytest.mark.parametrize("kind", PROTOCOLS)


# ---- endpoints that fail beside one that does not --------------------------------------------


@both
def test_a_refused_connection_is_tried_on_the_other_endpoint(site: Site, kind: str) -> None:
    before = site.retries(kind, "refused", "not_sent")
    assert all(told.is_good for told in site.many(kind, "refused", "plain"))
    assert site.retries(kind, "refused", "not_sent") > before
    site.others()


def _half(kind: str) -> Script:
    """Notes a request, answers half of it, closes."""

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        backend.requests.append("half")
        connection.write(http_answer(GOOD_BODY)[:-9])

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        stream = server.call()
        backend.requests.append("half")
        server.send(h2.headers(stream), h2.data(stream, h2.message(good_answer())[:9]))

    return {"rest": http, "grpc": rpc}[kind]


@both
def test_an_answer_that_breaks_off_is_asked_for_again_only_where_that_is_safe(
    site: Site, kind: str
) -> None:
    faulty = site.faulty[f"broken-{kind}"]
    faulty.use(_half(kind))
    with descriptors_come_back(site.gateway.pid):
        until(
            lambda: (
                all(told.is_good for told in site.many(kind, "broken", "twice", 4))
                and "half" in faulty.requests
            ),
            "the faulty endpoint was asked, and nobody noticed",
        )
        assert site.retries(kind, "broken", "broken") == len(faulty.requests)
        seen = len(faulty.requests)
        told = site.many(kind, "broken", "plain")
        failed = [each for each in told if not each.is_good]
        assert len(failed) == len(faulty.requests) - seen
        for each in failed:
            assert each.status in (502, grpc.StatusCode.INTERNAL)
            assert f"backend 'broken-{kind}'" in each.words
            assert "broke off" in each.words or "closed the connection" in each.words
        site.others()
        faulty.use(GOOD[kind])


def _declines(kind: str) -> Script:
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


@both
def test_what_is_declined_is_asked_of_another_only_where_that_is_safe(
    site: Site, kind: str
) -> None:
    faulty = site.faulty[f"declined-{kind}"]
    faulty.use(_declines(kind))
    until(
        lambda: (
            all(told.is_good for told in site.many(kind, "declined", "twice", 4))
            and "declined" in faulty.requests
        ),
        "the faulty endpoint was asked, and nobody noticed",
    )
    seen = len(faulty.requests)
    told = site.many(kind, "declined", "plain")
    failed = [each for each in told if not each.is_good]
    assert len(failed) == len(faulty.requests) - seen
    assert all("not now" in each.words for each in failed)
    assert site.retries(kind, "declined", "declined") == seen
    faulty.use(GOOD[kind])


def test_a_call_that_the_server_did_not_look_at_was_not_sent(site: Site) -> None:
    """REFUSED_STREAM and a GOAWAY before the call say so (RFC 9113, 8.7)."""
    before = site.retries("grpc", "silent", "not_sent")
    if site.engine == "compat":
        pytest.skip("grpcio does not tell")

    def refuses(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = server.call()
            backend.requests.append("refused")
            server.send(h2.frame(h2.RST_STREAM, 0, stream, (7).to_bytes(4, "big")))

    faulty = site.faulty["silent-grpc"]
    faulty.use(refuses)
    until(
        lambda: (
            all(told.is_good for told in site.many("grpc", "silent", "plain", 4))
            and "refused" in faulty.requests
        ),
        "the faulty endpoint was asked, and nobody noticed",
    )
    assert site.retries("grpc", "silent", "not_sent") > before
    faulty.use(good_rpc)


@both
def test_a_try_that_is_too_slow_is_followed_by_another(site: Site, kind: str) -> None:
    faulty = site.faulty[f"silent-{kind}"]
    hung = threading.Event()

    def silent(connection: Connection, backend: Backend) -> None:
        hung.set()
        connection.gone()

    def silent_rpc(connection: Connection, backend: Backend) -> None:
        h2.Server(connection).call()
        silent(connection, backend)

    faulty.use({"rest": silent, "grpc": silent_rpc}[kind])
    with descriptors_come_back(site.gateway.pid):
        until(
            lambda: (
                all(told.is_good for told in site.many(kind, "silent", "tries", 4))
                and hung.is_set()
            ),
            "the faulty endpoint was asked, and nobody noticed",
        )
        assert site.retries(kind, "silent", "timeout") > 0
        site.others()
        faulty.use(GOOD[kind])


def test_a_stream_is_asked_for_again_before_its_first_answer_only(site: Site) -> None:
    backends = (site.faulty["broken-grpc"], site.good["broken-grpc"])
    inner = pb.ModelInferResponse.FromString(good_answer())
    message = pb.ModelStreamInferResponse(infer_response=inner).SerializeToString()
    request = pb.ModelInferRequest.FromString(infer_message("twice.broken.grpc"))
    come = threading.Event()

    def breaks_at_once(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        server.send(h2.headers(server.call()))
        backend.requests.append("stream")

    def breaks_after_one(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        stream = server.call()
        backend.requests.append("stream")
        server.send(h2.headers(stream), h2.data(stream, h2.message(message)))
        come.wait(20)

    def streamed(script: Script) -> tuple[int, str, int]:
        """How many answers, the error after them, and how often a backend was asked."""
        for backend in backends:
            backend.requests.clear()
            backend.use(script)
        come.clear()
        asked = site.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers, error = 0, ""
        for each in asked(iter([request.SerializeToString()]), timeout=20):
            told = pb.ModelStreamInferResponse.FromString(each)
            error = told.error_message
            answers += not error
            come.set()
        return answers, error, sum(len(each.requests) for each in backends)

    before = site.retries("grpc", "broken", "broken")
    answers, error, tries = streamed(breaks_at_once)
    assert (answers, tries) == (0, 3)
    assert site.retries("grpc", "broken", "broken") == before + 2
    assert "broke off" in error or "closed the connection" in error
    answers, error, tries = streamed(breaks_after_one)
    assert (answers, tries) == (1, 1)
    assert "broke off" in error or "closed the connection" in error
    for backend in backends:
        backend.use(good_rpc)
    site.others()


# ---- all of them fail ------------------------------------------------------------------------

AT_ONCE = 40


@both
def test_an_outage_costs_the_budget_and_no_more(site: Site, kind: str) -> None:
    """Every request in progress breaks at once: a fifth of them is tried again, the others are
    told."""
    backends = (site.faulty[f"outage-{kind}"], site.good[f"outage-{kind}"])
    name, together = f"outage-{kind}", threading.Barrier(AT_ONCE + 1)
    arrived = threading.Semaphore(AT_ONCE)

    def met() -> None:
        if arrived.acquire(blocking=False):  # a first try: wait for the others
            together.wait(20)

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        backend.requests.append("broke")
        met()

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)  # calls share it: it breaks when all have come
        while sum(len(each.requests) for each in backends) < AT_ONCE:
            server.call()
            backend.requests.append("broke")

    for backend in backends:
        backend.use({"rest": http, "grpc": rpc}[kind])
        backend.requests.clear()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        asked = [clients.submit(site.ask, kind, "outage", "twice") for _ in range(AT_ONCE)]
        if kind == "rest":
            together.wait(20)
        site.others()
        told = [each.result() for each in asked]
    assert not any(each.is_good for each in told)
    assert all(f"backend '{name}'" in each.words for each in told)
    sent = sum(len(each.requests) for each in backends)
    retries = site.retries(kind, "outage", "broken")
    assert sent <= AT_ONCE + retries
    assert 1 <= retries <= AT_ONCE * 0.6
    assert site.metric("retry_budget_exhausted_total", backend=name) >= AT_ONCE * 0.4
    for backend in backends:
        backend.use(GOOD[kind])
    until(lambda: site.ask(kind, "outage", "plain").is_good, "it is well again")


# ---- slow ones -------------------------------------------------------------------------------


@both
def test_a_hedge_wins_and_the_slow_try_is_cancelled(site: Site, kind: str) -> None:
    faulty, name = site.faulty[f"slow-{kind}"], f"slow-{kind}"
    cancelled = threading.Event()

    def http(connection: Connection, backend: Backend) -> None:
        connection.request()
        connection.gone()  # HTTP/1.1 has no other way to say so
        cancelled.set()

    def rpc(connection: Connection, backend: Backend) -> None:
        connection.read(len(h2.PREFACE))
        connection.write(h2.frame(h2.SETTINGS, 0, 0))
        for each in h2.frames(connection.read):
            if each.kind == h2.RST_STREAM:
                assert int.from_bytes(each.payload, "big") == 8  # CANCEL
                cancelled.set()

    faulty.use({"rest": http, "grpc": rpc}[kind])
    with descriptors_come_back(site.gateway.pid):
        until(
            lambda: (
                all(told.is_good for told in site.many(kind, "slow", "hedged", 4))
                and cancelled.is_set()
            ),
            "the slow endpoint was asked, and nobody noticed",
        )
        assert site.metric("hedges_total", backend=name, outcome="won") >= 1
        site.others()
        faulty.use(GOOD[kind])


# ---- too much --------------------------------------------------------------------------------


@both
def test_beyond_its_limit_a_backend_is_waited_for_and_beyond_its_queue_refused(
    site: Site, kind: str
) -> None:
    name = f"full-{kind}"
    release = threading.Event()

    def http(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            backend.requests.append("asked")
            release.wait(20)
            connection.write(http_answer(GOOD_BODY))

    def rpc(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = server.call()
            backend.requests.append("asked")
            release.wait(20)
            server.send(h2.answer(stream, good_answer()))

    backends = (site.faulty[name], site.good[name])
    for backend in backends:
        backend.use({"rest": http, "grpc": rpc}[kind])

    def asked() -> int:
        return sum(each.requests.count("asked") for each in backends)

    def waiting() -> float:
        return site.metric("queue_requests", backend=name)

    with ThreadPoolExecutor(2) as clients:
        served = clients.submit(site.ask, kind, "full", "plain")
        until(lambda: asked() == 1, "the first is being served")
        late = site.ask(kind, "full", "short")
        assert late.status in (504, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert f"backend '{name}': the deadline passed while waiting in the queue" in late.words
        assert site.metric("queue_refusals_total", backend=name, reason="expired") == 1
        waits = clients.submit(site.ask, kind, "full", "plain")
        until(lambda: waiting() == 1, "the second waits")
        for _ in range(3):
            refused = site.ask(kind, "full", "plain")
            assert refused.status in (503, grpc.StatusCode.UNAVAILABLE)
            assert (
                "at its limit of 1 concurrent requests, and its queue of 1 is full" in refused.words
            )
            assert kind == "grpc" or refused.words.startswith("1 ")  # Retry-After
        assert site.metric("queue_refusals_total", backend=name, reason="full") == 3
        assert counted(site.gateway, backend=name, outcome="overloaded") == 3
        site.others()
        assert post(site.gateway.http, "/v2/models/identity/ready", b"").status in (200, 405)
        assert asked() == 1
        release.set()
        assert served.result().is_good
        assert waits.result().is_good
    assert asked() == 2
    assert waiting() == 0
    for backend in backends:
        backend.use(GOOD[kind])


def test_each_protocol_tells_when_to_come_back(site: Site) -> None:
    """The refusal of a full queue, over gRPC: its metadata."""
    name, release = "full-grpc", threading.Event()

    def holds(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = server.call()
            backend.requests.append("held")
            release.wait(20)
            server.send(h2.answer(stream, good_answer()))

    backends = (site.faulty[name], site.good[name])
    for backend in backends:
        backend.use(holds)
    asked = site.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    message = infer_message("plain.full.grpc")
    first, second = asked.future(message, timeout=20), asked.future(message, timeout=20)
    until(lambda: site.metric("queue_requests", backend=name) == 1, "one waits")
    with pytest.raises(grpc.RpcError) as caught:
        asked(message, timeout=20)
    assert ("retry-after", "1") in caught.value.trailing_metadata()
    release.set()
    assert first.result()
    assert second.result()
    for backend in backends:
        backend.use(good_rpc)
