"""Tests three servers that are killed one after the other (kill -9) under load and restarted.
Idempotent requests never fail. Other requests fail only if they had been sent, and each failure has
a clear error."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults.low_limits import good
from faults.payloads import document, tensor
from faults.peer import Client
from faults.rpc import call, channel
from faults.watch import counted, logged_bugs, rises, unharmed, until
from peers.support.process import Launch, free_ports, started
from peers.support.triton import started_triton

CONFIG = """
backends:
  three:
    protocol: v2-{transport}
    profile: {profile}
    endpoints: [{endpoints}]
    health: {{interval: 200ms, timeout: 2s, rise: 1}}
    limits: {{retry_percent: 100, min_retries: 20}}
  ours: {{protocol: builtin}}
routes:
  - {{model: identity, backend: ours}}
  - model: twice
    backend: three
    rewrite: {{model: simple}}
    idempotent: true
    retry: {{times: 3}}
  - {{model: once, backend: three, rewrite: {{model: simple}}}}
"""
SERVER = """
listeners: {{http: {{address: "127.0.0.1:{0}"}}, grpc: {{address: "127.0.0.1:{1}"}}, admin: null}}
backends: {{ours: {{protocol: builtin}}}}
routes: [{{model: simple, backend: ours}}]
log: {{access: false}}
"""
KILLED = 3
"""The number of servers. All are killed, one at a time."""
CLIENTS = 4
"""The number of clients of each route and protocol."""
MAX_NEW_CONNECTIONS = 40
"""Connections to three servers, for sixteen clients."""
_SIXTEEN: dict[str, Any] = {"shape": [1, 16], "data": list(range(16))}
BODY = document(tensor(**_SIXTEEN), tensor(name="INPUT1", **_SIXTEEN))


class Process(Protocol):
    """The first process of a server. It leads a process group."""

    @property
    def pid(self) -> int: ...


@contextmanager
def infergate(ports: Sequence[int]) -> Iterator[Process]:
    def prepare(folder: Path) -> Launch:
        file = folder / "routes.yaml"
        file.write_text(SERVER.format(*ports))
        argv = [sys.executable, "-m", "infergate", "--config", str(file)]
        return Launch("a server", argv, dict(os.environ), ports[:2])

    with started(prepare) as running:
        yield running


def triton(ports: Sequence[int]) -> AbstractContextManager[Process]:
    return started_triton(["simple"], ports)


def message(route: str) -> bytes:
    request = pb.ModelInferRequest(model_name=route)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(struct.pack("<16i", *range(16)))
    return bytes(request.SerializeToString())


class Load:
    """Clients that send requests until they are stopped. ``responses`` counts responses by route
    and outcome."""

    def __init__(self, gateway: Infergate, rpc_channel: grpc.Channel) -> None:
        self._gateway = gateway
        self._channel = rpc_channel
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[Client] = []
        self.responses: Counter[tuple[str, str]] = Counter()
        self.broken: list[BaseException] = []

    def http(self, route: str) -> Callable[[], str]:
        client = Client(self._gateway.http)
        self._clients.append(client)
        head = f"POST /v2/models/{route}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}"

        def send_request() -> str:
            client.send(f"{head}\r\n\r\n".encode() + BODY)
            answer = client.answer()
            return "ok" if answer.status == 200 else f"{answer.status} {answer.error}"

        return send_request

    def grpc(self, route: str) -> Callable[[], str]:
        request = message(route)

        def send_request() -> str:
            status = call(self._channel, request)
            good = status.code is grpc.StatusCode.OK
            return "ok" if good else f"{status.code.name} {status.details}"

        return send_request

    def _run(self, route: str, send_request: Callable[[], str]) -> None:
        try:
            while not self._stop.wait(0.004):  # this makes enough load without using all CPU
                self.responses[route, send_request()] += 1
        except BaseException as error:  # noqa: BLE001 - wait_for_responses reports it
            self.broken.append(error)

    def __enter__(self) -> Self:
        for route in ("twice", "once"):
            for make in (self.http, self.grpc):
                self._threads += [
                    threading.Thread(target=self._run, args=(route, make(route)))
                    for _ in range(CLIENTS)
                ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.socket.close()

    @property
    def served(self) -> int:
        return min(self.responses["twice", "ok"], self.responses["once", "ok"])

    def wait_for_responses(self, more: int) -> None:
        """Wait for ``more`` further successful responses of each kind."""
        target = self.served + more
        until(lambda: bool(self.broken) or self.served >= target, "requests are served")
        assert not self.broken


@pytest.mark.peers  # the test starts seven processes, with Triton many more
@pytest.mark.parametrize("transport", ["rest", "grpc"])
@pytest.mark.parametrize(
    ("profile", "server"),
    [
        pytest.param("infergate", infergate, id="infergate"),
        pytest.param("triton", triton, id="triton", marks=pytest.mark.triton),
    ],
)
def test_servers_are_killed_in_sequence_under_load(
    profile: str, server: Callable[[Sequence[int]], AbstractContextManager[Process]], transport: str
) -> None:
    ports = [free_ports(3) for _ in range(KILLED)]
    scheme, number = {"rest": ("http", 0), "grpc": ("grpc", 1)}[transport]
    endpoints = ", ".join(f'"{scheme}://127.0.0.1:{each[number]}"' for each in ports)
    config = CONFIG.format(transport=transport, profile=profile, endpoints=endpoints)
    with ExitStack() as stack:
        servers = [stack.enter_context(server(each)) for each in ports]
        gateway = stack.enter_context(started_infergate(config))
        rpc_channel = stack.enter_context(channel(gateway.grpc))
        retried = rises(gateway, "infergate_retries_total", backend="three")
        with (
            unharmed(gateway, lambda: good(gateway), max_new_descriptors=MAX_NEW_CONNECTIONS),
            retried,
            Load(gateway, rpc_channel) as load,
        ):
            load.wait_for_responses(50)
            for index in range(KILLED):
                os.killpg(servers[index].pid, signal.SIGKILL)
                load.wait_for_responses(100)
                servers[index] = stack.enter_context(server(ports[index]))
                before = _requests(gateway, index)
                until(
                    lambda n=before, i=index: _requests(gateway, i) > n,
                    "the server receives requests again",
                )  # type: ignore[misc]
                load.wait_for_responses(50)
        assert not load.broken
        failed = {key: count for key, count in load.responses.items() if key[1] != "ok"}
        assert not [key for key in failed if key[0] == "twice"], failed
        # A connection to a killed server fails at most one request, and the pool has at most one
        # connection for each client. There are four kinds of clients.
        assert sum(failed.values()) <= KILLED * 4 * CLIENTS, failed
        for _, error in failed:
            assert error.startswith(("502 ", "INTERNAL "))
            assert "backend 'three': the backend" in error
            assert "closed the connection" in error or "is incomplete" in error
        assert counted(gateway, route="twice", outcome="ok") == load.responses["twice", "ok"]
        assert logged_bugs(gateway) == ""


def _requests(gateway: Infergate, index: int) -> float:
    """Return the number of requests that the endpoint has served, according to the metric."""
    lines = [
        line
        for line in gateway.metrics().splitlines()
        if line.startswith("infergate_endpoint_requests_total{") and 'outcome="ok"' in line
    ]
    return float(lines[index].rpartition(" ")[2])
