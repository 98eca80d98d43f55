"""Routes with more than one backend: one that is away has a fallback, a mirror that hangs slows
nobody, headers and shares choose; over HTTP and gRPC."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults.behind import good_rpc
from faults.payloads import document, tensor
from faults.peer import Backend, Connection, good_http, http_answer, post, scripted
from faults.rpc import call, channel, infer_message
from faults.watch import counted, descriptors_come_back, metric, unharmed, until, well

CONFIG = """
backends:
  steady: {{protocol: v2-rest, profile: infergate, endpoints: ["http://{steady}"]}}
  canary: {{protocol: v2-grpc, profile: infergate, endpoints: ["grpc://{canary}"]}}
  mirror: {{protocol: v2-rest, profile: infergate, endpoints: ["http://{mirror}"]}}
  nobody: {{protocol: v2-grpc, profile: infergate, endpoints: ["grpc://{nobody}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: chosen, headers: {{x-canary: "yes"}}, backend: canary}}
  - {{model: chosen, backend: steady}}
  - model: shared
    backend: steady
    split: [{{backend: canary, percent: 50, rewrite: {{model: new}}}}]
    split_by: x-user
  - {{model: away, backend: nobody, fallback: steady}}
  - {{model: copied, backend: steady, mirror: {{backend: mirror, max_requests: 3}}, timeout: 10s}}
  - {{model: alone, backend: nobody}}
  - {{model: identity, backend: ours}}
readiness: lenient
"""


@dataclass(frozen=True)
class Site:
    gateway: Infergate
    channel: grpc.Channel
    steady: Backend
    canary: Backend
    mirror: Backend

    def ask(self, model: str, headers: dict[str, str] | None = None) -> None:
        """Through both frontends."""
        path = f"/v2/models/{model}/infer"
        told = post(self.gateway.http, path, document(tensor()), headers)
        assert told.status == 200, told
        metadata = tuple((headers or {}).items())
        status = call(self.channel, infer_message(model), metadata=metadata)
        assert status.code is grpc.StatusCode.OK, status

    def asked(self) -> tuple[int, int]:
        return len(self.steady.requests), len(self.canary.requests)

    def others(self) -> None:
        asked = document(tensor(), tensor(name="INPUT1"))
        assert post(self.gateway.http, "/v2/models/identity/infer", asked).status == 200

    def mirrored(self, outcome: str) -> float:
        """How many copies ended so."""
        name = "infergate_mirrored_requests_total"
        return metric(self.gateway, name, route="copied", outcome=outcome)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
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
            nobody=f"127.0.0.1:{unused.getsockname()[1]}",
        )
        with started_infergate(config) as gateway, channel(gateway.grpc) as made:
            site = Site(gateway, made, steady, canary, mirror)
            site.ask("chosen", {"x-canary": "yes"})
            site.ask("chosen")
            with unharmed(gateway, site.others, opens=len(("to the mirror", "more to steady"))):
                yield site
            well(gateway)


def test_a_header_or_metadata_chooses(site: Site) -> None:
    steady, canary = site.asked()
    chosen = counted(site.gateway, route="chosen", backend="canary", outcome="ok")
    site.ask("chosen", {"x-canary": "yes"})
    assert site.asked() == (steady, canary + 2)
    assert counted(site.gateway, route="chosen", backend="canary", outcome="ok") == chosen + 2
    site.ask("chosen", {"x-canary": "no"})
    site.ask("chosen")
    assert site.asked() == (steady + 4, canary + 2)


def test_a_share_of_users_sees_the_canary_over_every_protocol(site: Site) -> None:
    seen = set()
    for user in range(12):
        steady, canary = site.asked()
        site.ask("shared", {"x-user": str(user)})
        site.ask("shared", {"x-user": str(user)})
        more = (site.asked()[0] - steady, site.asked()[1] - canary)
        assert more in ((4, 0), (0, 4))
        seen.add(more)
    assert len(seen) == 2
    both = (counted(site.gateway, route="shared", backend=name) for name in ("steady", "canary"))
    assert sum(both) == 48


def test_a_backend_that_is_away_has_a_fallback(site: Site) -> None:
    for _ in range(3):
        site.ask("away")
    assert metric(site.gateway, "infergate_fallbacks_total", route="away") == 6
    assert counted(site.gateway, route="away", backend="steady", outcome="ok") == 6
    told = post(site.gateway.http, "/v2/models/alone/infer", document(tensor()))
    assert told.status == 502


def test_a_mirror_that_hangs_slows_nobody_and_holds_little(site: Site) -> None:
    def hangs(connection: Connection, backend: Backend) -> None:
        connection.request()
        backend.requests.append("copy")
        connection.gone()

    site.mirror.use(hangs)
    with descriptors_come_back(site.gateway.pid):
        for _ in range(20):
            site.ask("copied")
        until(lambda: len(site.mirror.requests) == 3, "three copies hang")
        assert site.mirrored("dropped") == 37
        assert counted(site.gateway, route="copied", backend="steady", outcome="ok") == 40
        site.mirror.use(good_http)  # those that hang are cut
        until(
            lambda: site.mirrored("failed") == 3,
            "they have failed, and nobody was told",
        )
        site.ask("copied")
    until(
        lambda: site.mirrored("ok") == 2,
        "it is sent copies again",
    )


def test_a_mirror_that_talks_nonsense_is_not_heard(site: Site) -> None:
    def nonsense(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            connection.write(http_answer(b"<html>"))

    site.mirror.use(nonsense)
    before = site.mirrored("failed")
    site.ask("copied")
    until(
        lambda: site.mirrored("failed") == before + 2,
        "nonsense is a failure",
    )
    site.mirror.use(good_http)
