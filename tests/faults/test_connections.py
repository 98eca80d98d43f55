"""Tests connections over the limit, and a process without free file descriptors. Accepted clients
are served, other clients are disconnected, and the process neither spins nor exits."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from e2e.running import Infergate, started_infergate
from faults import h2, watch
from faults.peer import Client

CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: "*", backend: ours}
"""
REFUSED, OPEN = "infergate_refused_connections_total", "infergate_open_connections"
SPARE = 10
"""Number of files that the process may still open."""
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", params=["own", "compat"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Infergate]:
    with started_infergate(CONFIG, engine=request.param) as running:
        yield running


@contextmanager
def descriptor_limit(gateway: Infergate, spare: int) -> Iterator[None]:
    """Let the process open ``spare`` more files than it has open."""
    before = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    limit = watch.descriptors(gateway.pid) + spare
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, before)


def cpu_seconds(gateway: Infergate) -> float:
    fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def is_accepted(client: Client) -> bool:
    client.send(GET)
    return client.answer().status == 200


def test_connected_clients_are_served_without_free_descriptors(gateway: Infergate) -> None:
    """The client, and the reader of the metrics, connect before the descriptors are used up."""
    with Client(gateway.http) as first:  # libuv reserves a descriptor for the first client
        assert is_accepted(first)
    with Client(gateway.http) as early, Client(gateway.admin) as scraping:
        assert is_accepted(early)
        before = open_descriptors(scraping)
        with watch.unharmed(gateway, lambda: is_accepted(early)):
            with descriptor_limit(gateway, SPARE), ExitStack() as stack:
                host, _, port = gateway.http.rpartition(":")
                for _ in range(60):
                    stack.enter_context(socket.create_connection((host, int(port))))
                watch.until(
                    lambda: open_descriptors(scraping) >= before + SPARE - 1, "no spare descriptor"
                )
                spent, began = cpu_seconds(gateway), time.monotonic()
                time.sleep(0.5)  # the process has nothing to do except serving connected clients
                spent, took = cpu_seconds(gateway) - spent, time.monotonic() - began
                assert spent < took / 2  # the process does not loop
            with Client(gateway.http) as late:
                assert is_accepted(late)
    assert watch.alive(gateway)
    assert watch.logged_bugs(gateway) == ""
    assert gateway.log.read_bytes().count(b"no more files") < 5


def open_descriptors(scraping: Client) -> float:
    """Return the number of open descriptors in a scrape on an open connection."""
    scraping.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return watch.sample(scraping.answer().body.decode(), "infergate_open_descriptors")


def assert_refused(address: str) -> None:
    """Check that a new connection is closed immediately."""
    with suppress(ConnectionError), Client(address) as client:
        assert not client.read_to_end().startswith(b"HTTP")


@pytest.mark.parametrize(("engine", "http", "grpc"), [("own", 2, 1), ("compat", 3, 3)])
def test_connections_over_the_limit_are_closed(engine: str, http: int, grpc: int) -> None:
    """``http`` and ``grpc`` are numbers of clients. grpcio does not report refused connections."""
    config = CONFIG + "limits: {connections: 3}\n"
    with started_infergate(config, engine=engine) as gateway, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.http)) for _ in range(http)]
        assert all(map(is_accepted, clients))
        with watch.unharmed(gateway, lambda: is_accepted(clients[0])):
            with ExitStack() as grpc_clients:
                for _ in range(grpc):
                    # The gRPC library may still count a connection that its client has closed.
                    watch.until(lambda: is_greeted(gateway.grpc, grpc_clients), "SETTINGS arrive")
                with watch.rises(gateway, REFUSED, listener="http", reason="connections"):
                    assert_refused(gateway.http)
                is_counted = engine == "own"
                with watch.rises(
                    gateway, REFUSED, by=is_counted, listener="grpc", reason="connections"
                ):
                    assert_refused(gateway.grpc)
                assert is_accepted(clients[1])
                assert watch.metric(gateway, OPEN, listener="http") == http
            watch.until(
                lambda: watch.metric(gateway, OPEN, listener="grpc") == 0,
                "all gRPC connections are closed",
            )
            with ExitStack() as late:
                watch.until(
                    lambda: is_greeted(gateway.grpc, late), "a gRPC client is accepted again"
                )
            watch.until(
                lambda: watch.metric(gateway, OPEN, listener="grpc") == 0,
                "the late gRPC connection is closed",
            )
            if engine == "own":  # HTTP and gRPC connections share the limit
                with Client(gateway.http) as http_client:
                    assert is_accepted(http_client)
        assert watch.logged_bugs(gateway) == ""


def is_greeted(address: str, open_clients: ExitStack) -> bool:
    """Return whether a new HTTP/2 client receives SETTINGS. If so, add the client to
    ``open_clients``."""
    with ExitStack() as stack, suppress(ConnectionError):
        client = stack.enter_context(Client(address))
        client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        if client.receive():
            open_clients.push(stack.pop_all())
            return True
    return False
