"""Tests that workers share access rules, rate limits and TLS certificates, and that a second signal
ends all of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections import Counter
from pathlib import Path

import grpc
import pytest

from e2e.running import Infergate
from e2e.several import BODY, INFER, Client, connections, lives, reloaded, several, until, workers
from faults.rpc import call, infer_message
from faults.watch import metric
from infergate.access.keys import digest_of
from tls_kit import Authority, Pair, replace_files

KEY = "infergate_somebodys"
TLS = """
listeners:
  admin: {{{{address: "127.0.0.1:{{0}}"}}}}
  grpc: {{{{address: "127.0.0.1:{{1}}", tls: {tls}}}}}
  http: {{{{address: "127.0.0.1:{{2}}", tls: {tls}}}}}
"""
CONFIG = f"""
drain: {{delay: 0s, timeout: 10m}}
reload: {{watch: false, post: true}}
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: "*", backend: demo}}]
access:
  keys: [{{name: a, sha256: "{digest_of(KEY).hex()}"}}]
  rules: [{{who: ["key:a"], operations: [infer]}}]
  rates: [{{requests: 7/h, each: [identity]}}]
"""
WITH_KEY = INFER.replace(b"Host: x", b"Host: x\r\nx-api-key: " + KEY.encode())
COUNT = 4


class Harness:
    def __init__(self, running: Infergate, authority: Authority, certificate: Pair) -> None:
        self.running = running
        self.certificate = certificate
        self.authority = authority
        self.tls_context = ssl.create_default_context(cafile=authority.file)

    async def spread(self) -> list[Client]:
        """Return ``COUNT`` connections, at least one to each worker. Busy workers accept fewer, so
        several attempts may be needed."""
        async with asyncio.timeout(100):
            while True:
                clients = [
                    await Client.connected(self.running.http, self.tls_context)
                    for _ in range(COUNT)
                ]
                ports = {each.port for each in clients}
                await asyncio.to_thread(
                    until,
                    lambda ports=ports: sum(self._connections_by_worker(ports)) == COUNT,
                    "all connections are accepted",
                )
                if min(self._connections_by_worker(ports)) > 0:
                    return clients
                for each in clients:
                    each.close()

    def _connections_by_worker(self, ports: set[int]) -> list[int]:
        return [connections(each, ports) for each in workers(self.running)]

    def grpc(self) -> grpc.StatusCode:
        channel_credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        with grpc.secure_channel(self.running.grpc, channel_credentials) as channel:
            status = call(channel, infer_message("identity"), metadata=(("x-api-key", KEY),))
        return status.code


@pytest.mark.parametrize("engine", ["own", pytest.param("compat", marks=pytest.mark.peers)])
async def test_workers_share_access_control_and_certificates(engine: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.server()
    settings = f"{{{{certificate: {certificate.certificate}, key: {certificate.key}}}}}"
    with several(engine, CONFIG, listeners=TLS.format(tls=settings)) as running:
        harness = Harness(running, authority, certificate)
        clients = await harness.spread()
        await check_rates(harness, clients)
        await check_certificate(harness)
        for each in clients:
            each.close()
        await check_second_signal(harness)


async def check_rates(harness: Harness, clients: list[Client]) -> None:
    statuses = [await each.send_request(WITH_KEY) for _ in range(3) for each in clients]
    assert statuses == [200] * 7 + [429] * 5
    assert [await each.send_request(INFER) for each in clients] == [401] * COUNT
    running = harness.running
    assert await asyncio.to_thread(harness.grpc) is grpc.StatusCode.RESOURCE_EXHAUSTED
    refused = "infergate_access_refused_total"
    assert metric(running, refused, reason="requests") == 6
    assert metric(running, refused, reason="no_credentials") == COUNT

    file = running.log.parent / "routes.yaml"
    rules = file.read_text().replace("operations: [infer]", "operations: [infer, metadata]")
    file.write_text(rules)
    assert "error" not in (last := reloaded(running)), last
    assert [await each.send_request(WITH_KEY) for each in clients] == [429] * COUNT
    file.write_text(rules.replace("7/h", "6/h"))
    assert "error" not in (last := reloaded(running)), last
    statuses_after_reload = Counter(
        [await each.send_request(WITH_KEY) for _ in range(2) for each in clients]
    )
    assert statuses_after_reload == {200: 6, 429: 2}


async def check_certificate(harness: Harness) -> None:
    replace_files(new := harness.authority.server(), harness.certificate)
    expected = ssl.PEM_cert_to_DER_cert(new.certificate.read_text().partition("\n\n")[0])

    async def uses_new_certificate() -> bool:
        clients = await harness.spread()
        certificates = {each.certificate for each in clients}
        for each in clients:
            each.close()
        return certificates == {expected}

    async with asyncio.timeout(100):
        while not await uses_new_certificate():  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.1)
    labels = {"listener": "http", "outcome": "taken"}
    assert metric(harness.running, "infergate_certificate_reloads_total", **labels) == 2


async def check_second_signal(harness: Harness) -> None:
    running = harness.running
    processes = [running.pid, *workers(running)]
    clients = await harness.spread()
    for each in clients:
        await each.send(WITH_KEY[: -len(BODY) // 2])
    os.kill(running.pid, signal.SIGTERM)

    def refuses_connections() -> bool:
        host, _, port = running.http.rpartition(":")
        with socket.socket() as connection:
            return connection.connect_ex((host, int(port))) != 0

    await asyncio.to_thread(until, refuses_connections, "no worker accepts connections")
    assert all(map(lives, processes))
    os.kill(running.pid, signal.SIGTERM)
    assert [await each.status() for each in clients] == [503] * COUNT
    await asyncio.to_thread(
        until, lambda: not any(map(lives, processes)), "all processes have ended"
    )
    for address in (running.http, running.grpc, running.admin):
        host, _, port = address.rpartition(":")
        socket.create_server((host, int(port))).close()
    log = running.log.read_text()
    assert "second signal: stopping immediately" in log
    assert "stopped" in log
    assert " ended: " not in log
    assert "Traceback" not in log
