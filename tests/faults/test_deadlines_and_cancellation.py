"""Tests deadlines: which deadline applies, which deadline is sent to the server, and that the work
for a disconnected client is cancelled.

The tests use a real Triton, and a gRPC server that reports what it received.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults.low_limits import good
from faults.payloads import document, tensor
from faults.peer import Backend, Client, Connection, get, good_http, post, scripted
from faults.rpc import INFER, RpcBackend, Status, call, channel, infer_message, rpc_backend
from faults.watch import SECONDS, assert_healthy, at_rest, counted, rises, unharmed, until
from peers.support.triton import Triton

LONG = 60.0
POLLS = 20
"""Number of metric polls within which an idle Triton starts to execute a request."""
ROUNDED = 1.1
"""The factor by which gRPC may round up a timeout, because it sends few digits."""
CONFIG = """
backends:
  depot: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"], timeout: 40s}}
  shop: {{protocol: v2-rest, endpoints: ["http://{rest}"], timeout: 40s, profile: infergate}}
  ours: {{protocol: builtin}}
routes:
  - {{model: short, backend: depot, timeout: 500ms}}
  - {{model: short-tr, backend: depot, timeout: 500ms, rewrite: {{inputs: {{no: none}}}}}}
  - {{model: long, backend: depot, timeout: 50s}}
  - {{model: long-tr, backend: depot, timeout: 50s, rewrite: {{inputs: {{no: none}}}}}}
  - {{model: plain, backend: depot}}
  - {{model: rest, backend: shop, timeout: 50s}}
  - {{model: rest-tr, backend: shop, timeout: 50s, rewrite: {{inputs: {{no: none}}}}}}
  - {{model: identity, backend: ours}}
readiness: lenient
"""


REQUESTS = "infergate_requests_total"


def silent_http(connection: Connection, backend: Backend) -> None:
    """Record the request and its cancellation by the gateway."""
    connection.request()
    backend.requests.append("received")
    connection.wait_closed()
    backend.requests.append("cancelled")


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    rest: Backend
    channel: grpc.Channel


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Harness, RpcBackend]]:
    with scripted(silent_http) as rest, rpc_backend() as rpc:
        config = CONFIG.format(grpc=rpc.address, rest=rest.address)
        with started_infergate(config) as gateway, channel(gateway.grpc) as rpc_channel:
            harness = Harness(gateway, rest, rpc_channel)
            for model in ("short", "long", "plain"):
                assert (
                    call(rpc_channel, infer_message(model), timeout=LONG).code is grpc.StatusCode.OK
                )
            with unharmed(gateway, lambda: good(gateway), max_new_descriptors=1):
                yield harness, rpc
            assert_healthy(gateway)


@pytest.fixture
def harness(running: tuple[Harness, RpcBackend]) -> Harness:
    return running[0]


@pytest.fixture
def rpc(running: tuple[Harness, RpcBackend]) -> Iterator[RpcBackend]:
    """Return the backend in its initial state."""
    backend = running[1]
    normal = RpcBackend.respond
    backend.respond = normal
    backend.entered, backend.cancelled = threading.Event(), threading.Event()
    backend.release = threading.Event()
    backend.remaining.clear()
    yield backend
    backend.release.set()
    backend.respond = normal


def abandoned(gateway: Infergate) -> float:
    """Return the number of requests that timed out or that the client cancelled."""
    return sum(counted(gateway, outcome=each) for each in ("timeout", "cancelled"))


# ---- deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["long", "long-tr"])
def test_a_shorter_client_deadline_is_forwarded_and_ends_the_call(
    harness: Harness, rpc: RpcBackend, model: str
) -> None:
    rpc.respond = rpc.wait
    before = counted(harness.gateway, route=model, outcome="ok")
    abandoned_before = abandoned(harness.gateway)
    status = call(harness.channel, infer_message(model), timeout=1.0)
    assert status.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert rpc.cancelled.wait(SECONDS)
    (remaining,) = rpc.remaining
    assert remaining is not None
    assert 0 < remaining <= 1.0 * ROUNDED
    assert counted(harness.gateway, route=model, outcome="ok") == before
    until(lambda: abandoned(harness.gateway) == abandoned_before + 1, "the request is counted")
    good(harness.gateway)


@pytest.mark.parametrize(
    ("model", "min_seconds", "max_seconds"),
    [("long", 40, 50), ("long-tr", 40, 50), ("plain", 20, 40)],
)
def test_a_route_timeout_replaces_the_backend_timeout(
    harness: Harness, rpc: RpcBackend, model: str, min_seconds: float, max_seconds: float
) -> None:
    """The route ``plain`` has no timeout, so the backend's timeout of 40 s applies."""
    before = counted(harness.gateway, route=model, outcome="ok")
    assert call(harness.channel, infer_message(model), timeout=LONG).code is grpc.StatusCode.OK
    assert post(harness.gateway.http, f"/v2/models/{model}/infer", document(tensor())).status == 200
    assert counted(harness.gateway, route=model, outcome="ok") == before + 2
    assert len(rpc.remaining) == 2
    for remaining in rpc.remaining:
        assert remaining is not None
        assert min_seconds < remaining <= max_seconds * ROUNDED


@pytest.mark.parametrize("model", ["short", "short-tr"])
def test_a_route_timeout_applies_instead_of_a_longer_deadline(
    harness: Harness, rpc: RpcBackend, model: str
) -> None:
    rpc.respond = rpc.wait
    before = counted(harness.gateway, route=model, outcome="timeout")
    began = time.monotonic()
    status = call(harness.channel, infer_message(model), timeout=LONG)
    assert status.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "backend 'depot'" in status.details
    assert time.monotonic() - began >= 0.5
    assert rpc.cancelled.wait(SECONDS)
    (remaining,) = rpc.remaining
    assert remaining is not None
    assert 0 < remaining <= 0.5 * ROUNDED
    answer = post(harness.gateway.http, f"/v2/models/{model}/infer", document(tensor()))
    assert answer.status == 504
    assert "backend 'depot'" in answer.error
    assert counted(harness.gateway, route=model, outcome="timeout") == before + 2
    good(harness.gateway)


# ---- clients that disconnect -----------------------------------------------------------------


def http_request(model: str, *more: dict[str, Any]) -> bytes:
    body = document(tensor(), *more)
    first = f"POST /v2/models/{model}/infer HTTP/1.1\r\n"
    return f"{first}Host: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def sent_request(harness: Harness, frontend: str, model: str) -> Callable[[], object]:
    """Send a request, and return a function that disconnects its client or cancels the call."""
    if frontend == "http":
        client = Client(harness.gateway.http)
        client.send(http_request(model))
        return client.socket.close
    return harness.channel.unary_unary(INFER).future(infer_message(model), timeout=LONG).cancel


@pytest.mark.parametrize("model", ["long", "long-tr"])
@pytest.mark.parametrize("frontend", ["http", "grpc"])
def test_a_client_that_disconnects_cancels_the_grpc_call(
    harness: Harness, rpc: RpcBackend, model: str, frontend: str
) -> None:
    rpc.respond = rpc.wait
    before = counted(harness.gateway, route=model, outcome="cancelled")
    disconnect = sent_request(harness, frontend, model)
    assert rpc.entered.wait(SECONDS)
    good(harness.gateway)
    assert not rpc.cancelled.is_set()
    disconnect()
    assert rpc.cancelled.wait(SECONDS)
    until(
        lambda: counted(harness.gateway, route=model, outcome="cancelled") == before + 1,
        "the request is counted",
    )


@pytest.mark.parametrize("model", ["rest", "rest-tr"])
@pytest.mark.parametrize("frontend", ["http", "grpc"])
def test_a_client_that_disconnects_closes_the_connection_to_an_http_backend(
    harness: Harness, model: str, frontend: str
) -> None:
    harness.rest.requests.clear()
    before = counted(harness.gateway, route=model, outcome="cancelled")
    disconnect = sent_request(harness, frontend, model)
    until(lambda: harness.rest.requests == ["received"], "the request has arrived")
    good(harness.gateway)
    disconnect()
    until(lambda: harness.rest.requests == ["received", "cancelled"], "the request is cancelled")
    until(lambda: at_rest(harness.gateway), "no request is in flight")
    assert counted(harness.gateway, route=model, outcome="cancelled") == before + 1


def test_a_hundred_requests_are_served_while_one_waits(harness: Harness, rpc: RpcBackend) -> None:
    """The slow request ends only after all others."""
    harness.rest.use(good_http)
    quick = rpc.respond
    rpc.respond = rpc.wait
    slow = harness.channel.unary_unary(INFER).future(infer_message("long"), timeout=LONG)
    assert rpc.entered.wait(SECONDS)
    rpc.respond = quick

    def send_request(number: int) -> bool:
        model = ("long", "long-tr", "rest", "rest-tr")[number % 4]
        if number % 8 < 4:
            path = f"/v2/models/{model}/infer"
            return post(harness.gateway.http, path, document(tensor())).status == 200
        return call(harness.channel, infer_message(model)).code is grpc.StatusCode.OK

    before = counted(harness.gateway, outcome="ok", backend="depot")
    with ThreadPoolExecutor(10) as clients:
        assert all(clients.map(send_request, range(100)))
    assert counted(harness.gateway, outcome="ok", backend="depot") == before + 50
    assert not slow.done()
    rpc.release.set()
    assert slow.result(SECONDS)
    harness.rest.use(silent_http)


# ---- a real Triton ---------------------------------------------------------------------------

TRITON = """
backends:
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: identity, backend: ours}}
  - {{model: grpc.short, backend: grpc, timeout: 500ms, rewrite: {{model: slow}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
"""


@pytest.fixture(scope="module")
def triton_gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(TRITON.format(grpc=triton.grpc)) as gateway:
        with channel(gateway.grpc) as rpc_channel:
            assert call(rpc_channel, slow_message("grpc.slow", 0)).code is grpc.StatusCode.OK
        with unharmed(gateway, lambda: good(gateway)):
            yield gateway
        assert_healthy(gateway)


def slow_message(model: str, seconds: float) -> bytes:
    result = pb.ModelInferRequest(model_name=model)
    result.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    result.inputs.add(name="SECONDS", datatype="FP32", shape=[1])
    result.raw_input_contents.extend([b"\x07\0\0\0", np.float32(seconds).tobytes()])
    return bytes(result.SerializeToString())


def cancelled(triton: Triton) -> int:
    """Return the number of requests of ``slow`` whose cancellation Triton has seen."""
    with channel(triton.grpc) as rpc_channel:
        status: Status = call(rpc_channel, slow_message("slow", 0))
    response = pb.ModelInferResponse.FromString(status.message)
    names = [output.name for output in response.outputs]
    return int.from_bytes(response.raw_output_contents[names.index("CANCELLED")], "little")


def queue_a_probe(triton: Triton, direct: grpc.Channel) -> grpc.Future:
    """Wait until Triton executes the request of the test: send probes to ``slow`` until a probe is
    queued behind the request. Return the call of this probe."""

    def queued() -> bool:
        metrics = get(triton.metrics, "/metrics").body.decode()
        return 'nv_inference_pending_request_count{model="slow",version="1"} 1' in metrics

    def stays_queued() -> bool:
        return all(queued() for _ in range(POLLS))

    while True:
        probe = direct.unary_unary(INFER).future(slow_message("slow", 0), timeout=LONG)
        # On a busy machine, Triton may take a moment to start the probe itself.
        until(lambda: probe.done() or stays_queued(), "the probe is queued or has ended")  # noqa: B023
        if not probe.done():
            return probe


def test_a_client_deadline_cancels_in_triton(triton_gateway: Infergate, triton: Triton) -> None:
    before, abandoned_before = cancelled(triton), abandoned(triton_gateway)
    with channel(triton_gateway.grpc) as rpc_channel:
        status = call(rpc_channel, slow_message("grpc.slow", LONG), timeout=1.0)
    assert status.code is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: cancelled(triton) == before + 1, "Triton reports the cancellation")
    until(lambda: abandoned(triton_gateway) == abandoned_before + 1, "the request is counted")


def test_a_route_timeout_cancels_in_triton(triton_gateway: Infergate, triton: Triton) -> None:
    before = cancelled(triton)
    timeout = rises(triton_gateway, REQUESTS, outcome="timeout")
    with timeout, channel(triton_gateway.grpc) as rpc_channel:
        status = call(rpc_channel, slow_message("grpc.short", LONG), timeout=LONG)
    assert status.code is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: cancelled(triton) == before + 1, "Triton reports the cancellation")


@pytest.mark.parametrize("frontend", ["http", "grpc"])
def test_a_client_disconnect_cancels_in_triton(
    triton_gateway: Infergate, triton: Triton, frontend: str
) -> None:
    """The backend is connected over gRPC, because Triton's REST server does not notice that its
    client disconnects."""
    before = cancelled(triton)
    model = "grpc.slow"
    with (
        rises(triton_gateway, REQUESTS, outcome="cancelled"),
        channel(triton_gateway.grpc) as rpc_channel,
        channel(triton.grpc) as direct,
        Client(triton_gateway.http) as client,
    ):
        if frontend == "grpc":
            pending = rpc_channel.unary_unary(INFER).future(slow_message(model, LONG), timeout=LONG)
            disconnect = pending.cancel
        else:
            client.send(http_request(model, tensor(name="SECONDS", datatype="FP32", data=[LONG])))
            disconnect = client.socket.close
        probe = queue_a_probe(triton, direct)
        disconnect()
        probe.result(SECONDS)
        assert cancelled(triton) == before + 1
