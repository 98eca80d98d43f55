"""More connections than there may be, and descriptors that are used up: who is let in is served,
the rest is turned away, and nothing spins or dies."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from e2e.running import Infergate, started_infergate
from faults.peer import Client
from faults.watch import alive, complaints, descriptors, descriptors_come_back, until

CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: "*", backend: ours}
"""
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", params=["own", "compat"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Infergate]:
    with started_infergate(CONFIG, engine=request.param) as running:
        yield running


@contextmanager
def few_files(gateway: Infergate, spare: int) -> Iterator[None]:
    """The process may open ``spare`` more than it has."""
    before = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    most = descriptors(gateway.pid) + spare
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, before)


def busy(gateway: Infergate) -> float:
    """Seconds of CPU so far."""
    fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def is_served(client: Client) -> bool:
    client.send(GET)
    return client.answer().status == 200


def test_descriptors_are_used_up(gateway: Infergate) -> None:
    with Client(gateway.http) as first:  # libuv keeps one in reserve, from the first client on
        assert is_served(first)
    with descriptors_come_back(gateway.pid), Client(gateway.http) as early:
        assert is_served(early)
        with few_files(gateway, 10), ExitStack() as stack:
            host, _, port = gateway.http.rpartition(":")
            for _ in range(60):
                stack.enter_context(socket.create_connection((host, int(port))))
            spent, began = busy(gateway), time.monotonic()
            while time.monotonic() < began + 2:
                assert is_served(early), "who is let in is served"
                time.sleep(0.1)
            assert busy(gateway) - spent < 1, "nothing spins"
        until(lambda: descriptors(gateway.pid) < 1000, "they are closed")
        with Client(gateway.http) as late:
            assert is_served(late)
    assert alive(gateway)
    assert complaints(gateway) == ""
    assert gateway.log.read_bytes().count(b"no more files") < 5


def metric(gateway: Infergate, name: str) -> float:
    for line in gateway.metrics().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    raise KeyError(name)


def test_too_many_connections() -> None:
    with started_infergate(CONFIG + "limits: {connections: 3}\n") as gateway, ExitStack() as stack:
        with descriptors_come_back(gateway.pid):
            clients = [stack.enter_context(Client(gateway.http)) for _ in range(2)]
            assert all(map(is_served, clients))
            host, _, port = gateway.grpc.rpartition(":")
            held = socket.create_connection((host, int(port)))
            assert held.recv(9), "settings"
            for address in (gateway.http, gateway.grpc):
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port))) as one_more:
                    try:
                        while one_more.recv(100):
                            pass
                    except ConnectionError:
                        pass
            assert all(map(is_served, clients)), "who is let in is served, and the admin tells"
            refused = 'infergate_refused_connections_total{listener="%s",reason="connections"}'
            assert metric(gateway, refused % "http") == metric(gateway, refused % "grpc") == 1
            assert metric(gateway, 'infergate_open_connections{listener="http"}') == 2
            held.close()
            until(
                lambda: metric(gateway, 'infergate_open_connections{listener="grpc"}') == 0,
                "there is room again",
            )
            with Client(gateway.http) as again:
                assert is_served(again)
            for each in clients:
                each.socket.close()
        assert complaints(gateway) == ""


def test_refused_requests_are_told_by_limit() -> None:
    with (
        started_infergate(CONFIG + "limits: {body: 1000, header_count: 10}\n") as gateway,
        Client(gateway.http) as large,
        Client(gateway.http) as many,
    ):
        large.send(b"POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        assert large.answer().status == 413
        many.send(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11 + b"\r\n")
        assert many.answer().status == 431
        for limit in ("body", "header_count"):
            assert metric(gateway, f'infergate_refused_requests_total{{limit="{limit}"}}') == 1
