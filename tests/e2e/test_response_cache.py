"""Tests the response cache of two workers: sharing, concurrent requests and invalidation."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from e2e.running import Infergate
from e2e.several import reloaded, several, until, workers
from faults.payloads import document, tensor
from faults.peer import Answer, post
from faults.rpc import INFER, infer_message
from faults.watch import metric
from http_stand_in import QuietHandler, StandInServer

CONFIG = """
control: {{repository: true}}
reload: {{watch: false, post: true}}
backends:
  server: {{protocol: v2-rest, profile: triton, endpoints: ["http://127.0.0.1:{port}"]}}
routes:
  - model: "*"
    backend: server
    idempotent: true
    cache: {{ttl: {ttl}}}
"""


class Server(StandInServer):
    """A model server that counts inferences. While ``gate`` is clear, it does not respond."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.gate.set()
        self.inferences = 0


class Handler(QuietHandler):
    server: Server

    def post(self) -> None:
        self.body()
        document: dict[str, object] = {}
        if self.path.endswith("/infer"):
            with self.server.lock:
                self.server.inferences += 1
                number = self.server.inferences
            self.server.gate.wait(30)
            output = {"name": "y", "datatype": "INT32", "shape": [1], "data": [number]}
            document = {"model_name": "m", "model_version": "1", "outputs": [output]}
        self.respond(200, document)

    def get(self) -> None:
        self.respond(200, {})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Infergate]:
    with several(config=CONFIG.format(port=server.server_port, ttl="1h")) as running:
        yield running


def infer(gateway: Infergate, data: int, model: str = "m", **headers: str) -> Answer:
    header_fields = {name.replace("_", "-"): text for name, text in headers.items()}
    body = document(tensor(data=[data]))
    return post(gateway.http, f"/v2/models/{model}/infer", body, header_fields)


def cache_requests(gateway: Infergate, result: str) -> float:
    return metric(gateway, "infergate_cache_requests_total", result=result)


def test_all_workers_share_responses(gateway: Infergate, server: Server) -> None:
    before, hits = server.inferences, cache_requests(gateway, "hit")
    responses = [infer(gateway, 1) for _ in range(20)]  # each on its own connection
    assert server.inferences == before + 1
    assert len({response.body for response in responses}) == 1
    statuses = [response.headers["cache-status"] for response in responses]
    assert statuses[0] == "infergate; fwd=miss; stored"
    assert all(status.startswith("infergate; hit; ttl=") for status in statuses[1:])
    assert int(responses[-1].headers["age"]) >= 0
    assert cache_requests(gateway, "hit") == hits + 19
    assert metric(gateway, "infergate_cache_entries") >= 1
    assert metric(gateway, "infergate_cache_bytes") >= 4096

    def logged() -> list[str]:
        return [line.get("cache", "") for line in gateway.logged("request")]

    until(lambda: {"miss", "hit"} <= set(logged()), "the access log has the outcomes of the cache")


def test_grpc_metadata_names_the_cache(gateway: Infergate, server: Server) -> None:
    before = server.inferences
    with grpc.insecure_channel(gateway.grpc) as channel:
        responses = []
        for _ in range(2):
            message, call = channel.unary_unary(INFER).with_call(infer_message("m"))
            responses.append((message, dict(call.trailing_metadata())))
    assert responses[0][0] == responses[1][0]
    assert responses[0][1]["cache-status"] == "infergate; fwd=miss; stored"
    assert str(responses[1][1]["cache-status"]).startswith("infergate; hit; ttl=")
    assert server.inferences == before + 1


def test_identical_concurrent_requests_are_sent_once_by_each_worker(
    gateway: Infergate, server: Server
) -> None:
    before, count = server.inferences, 100
    server.gate.clear()
    try:
        with ThreadPoolExecutor(count) as pool:
            responses = [pool.submit(infer, gateway, 2) for _ in range(count)]
            until(
                lambda: metric(gateway, "infergate_in_flight_requests") >= count,
                "all requests wait",
            )
            server.gate.set()
            bodies = {response.result().body for response in responses}
    finally:
        server.gate.set()
    assert 1 <= len(bodies) <= server.inferences - before <= 2
    assert infer(gateway, 2).body in bodies


def test_no_cache_refreshes_and_no_store_bypasses(gateway: Infergate, server: Server) -> None:
    first = infer(gateway, 3)
    refreshed = infer(gateway, 3, cache_control="no-cache")
    assert refreshed.body != first.body
    assert infer(gateway, 3).body == refreshed.body
    not_stored = infer(gateway, 3, cache_control="no-store")
    assert not_stored.body not in {first.body, refreshed.body}
    assert infer(gateway, 3).body == refreshed.body


def test_loading_a_model_makes_responses_obsolete(gateway: Infergate, server: Server) -> None:
    first = infer(gateway, 4)
    assert infer(gateway, 4).body == first.body
    assert post(gateway.http, "/v2/repository/models/m/load", b"{}").status == 200
    responses = [infer(gateway, 4) for _ in range(10)]
    assert {response.body for response in responses} == {responses[0].body}
    assert responses[0].body != first.body


def test_a_reload_keeps_the_responses_of_routes_that_have_not_changed(
    gateway: Infergate, server: Server
) -> None:
    first = infer(gateway, 5)
    file = gateway.log.parent / "routes.yaml"
    file.write_text(file.read_text() + "log: {access: true}\n")
    assert reloaded(gateway)["ok"]
    assert infer(gateway, 5).body == first.body
    file.write_text(file.read_text().replace("ttl: 1h", "ttl: 2h"))
    assert reloaded(gateway)["ok"]
    assert infer(gateway, 5).body != first.body


def test_a_killed_worker_leaves_a_usable_cache(gateway: Infergate, server: Server) -> None:
    first = infer(gateway, 6)
    before = workers(gateway)
    os.kill(before[0], signal.SIGKILL)
    until(
        lambda: len(workers(gateway)) == 2 and workers(gateway) != before,
        "a new worker has started",
    )
    responses = []

    def has_enough_responses() -> bool:
        responses.append(infer(gateway, 6))
        return len(responses) > 10

    until(has_enough_responses, "eleven responses arrive")
    assert {response.body for response in responses} == {first.body}
