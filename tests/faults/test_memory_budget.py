"""Tests short requests that make the gateway hold much memory. The memory is counted
before it is allocated, requests beyond ``limits.in_flight_bytes`` are rejected, and the memory is
released within seconds. Other clients are served meanwhile."""

from __future__ import annotations

import functools
import gzip
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults import watch
from faults.low_limits import PATH, VALID_BODY, head, message
from faults.peer import Backend, Client, Connection, post, scripted, silent
from faults.rpc import INFER, call, channel

BUDGET = 64 * watch.MIB
BODY = 12 * watch.MIB
CROWD = 24
OVERHEAD = 64 * watch.MIB
"""Memory of the processes beyond the budget: caches, helper processes and socket buffers."""
CONFIG = f"""
backends:
  silent: {{{{protocol: v2-rest, endpoints: ["http://{{silent}}"], profile: infergate}}}}
  chatty: {{{{protocol: v2-rest, endpoints: ["http://{{chatty}}"], profile: infergate}}}}
  ours: {{{{protocol: builtin}}}}
routes:
  - {{{{model: fwd, backend: silent}}}}
  - {{{{model: tr, backend: silent, rewrite: {{{{inputs: {{{{no: none}}}}}}}}}}}}
  - {{{{model: chatty, backend: chatty}}}}
  - {{{{model: "*", backend: ours}}}}
limits: {{{{body: {BODY}B, json: 8MiB, in_flight_bytes: {BUDGET}B}}}}
readiness: lenient
helpers: 1
"""
FACTOR = 3
"""The maximum number of bytes held for each counted byte (docs/limits.md)."""
RECOVERY = 15.0
"""Seconds until memory is available again. The check for slow readers runs twice a second, and each
reader may pause for two seconds."""
READERS = "infergate_refused_connections_total"
GZIP = "Content-Encoding: gzip"


def chatty(connection: Connection, backend: Backend) -> None:
    """Announce a long response, and send all but its end."""
    connection.request()
    backend.requests.append("received")
    connection.write(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 * watch.MIB) + bytes(7 * watch.MIB)
    )
    connection.wait_closed()


def request(count: int, datatype: str = "UINT8", *, binary: bool = False) -> bytes:
    """Return a compressed request with ``count`` zeros, and with a placeholder for its path. With
    ``binary``, it requests a binary response."""
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [count],
              "parameters": {"binary_data_size": count}}  # fmt: skip
    document = json.dumps(
        {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    ).encode()
    body = gzip.compress(document + bytes(count))
    length = f"Inference-Header-Content-Length: {len(document)}"
    return head(GZIP, length, length=len(body), path="{path}") + body


def request_to(model: str, template: bytes) -> bytes:
    return template.replace(b"{path}", f"/v2/models/{model}/infer".encode(), 1)


LONG = request(8 * watch.MIB, binary=True)
"""A request of some KB that inflate to 8 MiB."""
WORDY = request(watch.MIB, datatype="BOOL")
"""A request of a KB. Its response is 6 MiB of "false"."""
assert len(LONG) + len(WORDY) < 16 * 1024


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    silent: Backend

    def good(self) -> bool:
        with channel(self.gateway.grpc) as rpc_channel:
            rpc = call(rpc_channel, message(10)).code
        return post(self.gateway.http, PATH, VALID_BODY).status == 200 and rpc is grpc.StatusCode.OK

    def held(self) -> float:
        return watch.metric(self.gateway, "infergate_in_flight_bytes")

    def rejections(self) -> float:
        return watch.metric(
            self.gateway, "infergate_refused_requests_total", limit="in_flight_bytes"
        )

    def cut_off(self) -> float:
        """Return the number of disconnected readers."""
        return watch.metric(self.gateway, READERS, reason="slow_reader")

    def is_full(self, rejections: float, cut_off: float) -> bool:
        """Return whether a request was rejected or a slow reader was disconnected after the
        counters had these values."""
        return self.rejections() > rejections or self.cut_off() > cut_off

    def waits(self, held: float) -> bool:
        """Return whether another response waits for its reader, and no request is in progress."""
        is_idle = watch.metric(self.gateway, "infergate_in_flight_requests") == 0
        return is_idle and self.held() >= held + watch.MIB

    def memory(self) -> int:
        pids = [self.gateway.pid, *watch.children(self.gateway.pid)]
        return sum(map(watch.resident, pids))


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with scripted(silent) as silent_backend, scripted(chatty) as chatty_backend:
        config = CONFIG.format(silent=silent_backend.address, chatty=chatty_backend.address)
        with started_infergate(config) as gateway:
            harness = Harness(gateway, silent_backend)
            with Client(gateway.http) as client:  # helpers open files at first use
                assert _is_accepted(client, request_to("identity", WORDY))
            yield harness
            watch.assert_healthy(gateway)


@pytest.fixture(autouse=True)
def bounded(harness: Harness) -> Iterator[None]:
    """Check that other clients are served during each test, and that memory stays within the
    budget."""
    assert harness.good()
    with watch.unharmed(
        harness.gateway,
        harness.good,
        max_growth=BUDGET + OVERHEAD,
        max_retained=watch.MAX_RETAINED + OVERHEAD,
    ):
        yield


def crowd(harness: Harness, data: bytes, stack: ExitStack, count: int = CROWD) -> None:
    """Connect clients that send the same request and read nothing."""
    clients = [stack.enter_context(Client(harness.gateway.http)) for _ in range(count)]
    for client in clients:
        client.socket.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
        client.send(data)


@pytest.mark.parametrize("model", ["fwd", "tr", "chatty"])
def test_requests_waiting_for_a_silent_backend_are_counted(harness: Harness, model: str) -> None:
    """Inflated bytes and received response bytes are counted and stay within the budget."""
    before = harness.memory()
    with ExitStack() as stack:
        with watch.refused_by(harness.gateway, "in_flight_bytes"):
            crowd(harness, request_to(model, LONG), stack)
        watch.until(lambda: harness.held() >= BUDGET / 2, "much memory is held")
        assert harness.held() <= BUDGET
        assert harness.memory() - before <= FACTOR * harness.held() + OVERHEAD
    watch.until(lambda: harness.held() < watch.MIB, "the memory is released")


@pytest.mark.parametrize("model", ["fwd", "tr"])
def test_grpc_requests_waiting_for_a_silent_backend_are_counted(
    harness: Harness, model: str
) -> None:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="UINT8", shape=[8 * watch.MIB])
    message.raw_input_contents.append(bytes(8 * watch.MIB))
    with channel(harness.gateway.grpc) as rpc_channel:
        send_request = rpc_channel.unary_unary(INFER)
        with watch.refused_by(harness.gateway, "in_flight_bytes"):
            calls = [
                send_request.future(message.SerializeToString(), compression=grpc.Compression.Gzip)
                for _ in range(CROWD)
            ]
        watch.until(lambda: harness.held() >= BUDGET / 2, "much memory is held")
        assert harness.held() <= BUDGET
        for each in calls:
            each.cancel()
    watch.until(lambda: harness.held() < watch.MIB, "the memory is released")


def test_unread_responses_are_counted(harness: Harness) -> None:
    """Long responses are rejected while the budget is exhausted, and the readers that hold it are
    disconnected. Within seconds, the next response is accepted."""
    before = harness.memory()
    with ExitStack() as stack, watch.rises(harness.gateway, READERS, reason="slow_reader"):
        full = functools.partial(harness.is_full, harness.rejections(), harness.cut_off())
        while not full():
            held = harness.held()
            crowd(harness, request_to("identity", WORDY), stack, 1)
            watch.until(
                lambda held=held: full() or harness.waits(held), "its response waits for the reader"
            )
        assert harness.held() <= BUDGET
        assert harness.memory() - before <= FACTOR * harness.held() + OVERHEAD
        began = time.monotonic()
        with Client(harness.gateway.http) as client:
            watch.until(
                lambda: _is_accepted(client, request_to("identity", WORDY)),
                "requests are accepted again",
            )
        assert time.monotonic() - began < RECOVERY


def _is_accepted(client: Client, data: bytes) -> bool:
    client.send(data)
    status = client.answer().status
    assert status in {200, 503}
    return status == 200


def test_a_response_over_the_body_limit_is_rejected(harness: Harness) -> None:
    """The request has a few KB, and its response would have 24 MiB."""
    with watch.refused_by(harness.gateway, "body"), Client(harness.gateway.http) as client:
        client.send(request_to("identity", request(4 * watch.MIB, "BOOL")))
        answer = client.answer()
        assert answer.status == 413
        assert f"the limit is {BODY} (limits.body)" in answer.error
