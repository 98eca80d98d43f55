"""Tests routes with several backends: fallback, mirror, and selection by header or weight, over
HTTP and gRPC."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults.low_limits import good
from faults.payloads import document, tensor
from faults.peer import Backend, Connection, good_http, http_answer, post, scripted, silent
from faults.rpc import call, channel, infer_message
from faults.scripted_backends import good_rpc
from faults.watch import assert_healthy, closes_descriptors, counted, metric, unharmed, until

CONFIG = """
backends:
  steady: {{protocol: v2-rest, profile: infergate, endpoints: ["http://{steady}"]}}
  canary: {{protocol: v2-grpc, profile: infergate, endpoints: ["grpc://{canary}"]}}
  mirror: {{protocol: v2-rest, profile: infergate, endpoints: ["http://{mirror}"]}}
  unreachable: {{protocol: v2-grpc, profile: infergate, endpoints: ["grpc://{unreachable}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: chosen, headers: {{x-canary: "yes"}}, backend: canary}}
  - {{model: chosen, backend: steady}}
  - model: shared
    backend: steady
    split: [{{backend: canary, percent: 50, rewrite: {{model: new}}}}]
    split_by: x-user
  - {{model: away, backend: unreachable, fallback: steady}}
  - {{model: copied, backend: steady, mirror: {{backend: mirror, max_requests: 3}}, timeout: 10s}}
  - {{model: alone, backend: unreachable}}
  - {{model: identity, backend: ours}}
readiness: lenient
"""


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    channel: grpc.Channel
    steady: Backend
    canary: Backend
    mirror: Backend

    def infer_over_both(self, model: str, headers: dict[str, str] | None = None) -> None:
        """Send a request over HTTP and a request over gRPC, which must both succeed."""
        path = f"/v2/models/{model}/infer"
        response = post(self.gateway.http, path, document(tensor()), headers)
        assert response.status == 200, response
        metadata = tuple((headers or {}).items())
        status = call(self.channel, infer_message(model), metadata=metadata)
        assert status.code is grpc.StatusCode.OK, status

    def request_counts(self) -> tuple[int, int]:
        return len(self.steady.requests), len(self.canary.requests)

    def mirrored(self, outcome: str) -> float:
        name = "infergate_mirrored_requests_total"
        return metric(self.gateway, name, route="copied", outcome=outcome)


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with (
        socket.socket() as unused,
        scripted(good_http) as steady,
        scripted(good_rpc) as canary,
        scripted(good_http) as mirror,
    ):
        unused.bind(("127.0.0.1", 0))  # never listens
        config = CONFIG.format(
            steady=steady.address,
            canary=canary.address,
            mirror=mirror.address,
            unreachable=f"127.0.0.1:{unused.getsockname()[1]}",
        )
        with started_infergate(config) as gateway, channel(gateway.grpc) as rpc_channel:
            harness = Harness(gateway, rpc_channel, steady, canary, mirror)
            harness.infer_over_both("chosen", {"x-canary": "yes"})
            harness.infer_over_both("chosen")
            # The new descriptors are a connection to the mirror and a second connection to steady.
            with unharmed(gateway, lambda: good(gateway), max_new_descriptors=2):
                yield harness
            assert_healthy(gateway)


def test_a_header_or_metadata_selects_the_backend(harness: Harness) -> None:
    steady, canary = harness.request_counts()
    chosen = counted(harness.gateway, route="chosen", backend="canary", outcome="ok")
    harness.infer_over_both("chosen", {"x-canary": "yes"})
    assert harness.request_counts() == (steady, canary + 2)
    assert counted(harness.gateway, route="chosen", backend="canary", outcome="ok") == chosen + 2
    harness.infer_over_both("chosen", {"x-canary": "no"})
    harness.infer_over_both("chosen")
    assert harness.request_counts() == (steady + 4, canary + 2)


def test_a_share_of_users_gets_the_canary_over_http_and_grpc(harness: Harness) -> None:
    targets = set()
    for user in range(12):
        steady, canary = harness.request_counts()
        harness.infer_over_both("shared", {"x-user": str(user)})
        harness.infer_over_both("shared", {"x-user": str(user)})
        increases = (harness.request_counts()[0] - steady, harness.request_counts()[1] - canary)
        assert increases in ((4, 0), (0, 4))
        targets.add(increases)
    assert len(targets) == 2
    counts = (
        counted(harness.gateway, route="shared", backend=name) for name in ("steady", "canary")
    )
    assert sum(counts) == 48


def test_an_unreachable_backend_uses_the_fallback(harness: Harness) -> None:
    for _ in range(3):
        harness.infer_over_both("away")
    assert metric(harness.gateway, "infergate_fallbacks_total", route="away") == 6
    assert counted(harness.gateway, route="away", backend="steady", outcome="ok") == 6
    response = post(harness.gateway.http, "/v2/models/alone/infer", document(tensor()))
    assert response.status == 502


def test_a_hanging_mirror_delays_no_request_and_holds_little_memory(harness: Harness) -> None:
    harness.mirror.use(silent)
    with closes_descriptors(harness.gateway.pid):
        for _ in range(20):
            harness.infer_over_both("copied")
        until(lambda: len(harness.mirror.requests) == 3, "three copies hang")
        assert harness.mirrored("dropped") == 37
        assert counted(harness.gateway, route="copied", backend="steady", outcome="ok") == 40
        harness.mirror.use(good_http)  # this cancels the hanging copies
        until(lambda: harness.mirrored("failed") == 3, "the hanging copies have failed")
        harness.infer_over_both("copied")
    until(lambda: harness.mirrored("ok") == 2, "new copies succeed")


def test_garbage_from_a_mirror_is_ignored(harness: Harness) -> None:
    def send_garbage(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            connection.write(http_answer(b"<html>"))

    harness.mirror.use(send_garbage)
    before = harness.mirrored("failed")
    harness.infer_over_both("copied")
    until(lambda: harness.mirrored("failed") == before + 2, "invalid responses count as failed")
    harness.mirror.use(good_http)
