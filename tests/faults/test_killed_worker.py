"""Tests a worker that is killed, crashes repeatedly, or cannot start, and a supervisor that is
killed."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest

from e2e.running import Infergate
from e2e.several import (
    DEMO,
    Client,
    connections,
    is_ready,
    kill,
    lives,
    requests,
    several,
    until,
    workers,
)
from faults.peer import get
from faults.watch import MIB, at_rest, checks, descriptors, limited_growth, metric

CRASHING = """
import os, sys
if os.path.exists({file!r}) and any("workers.process" in each for each in sys.orig_argv):
    os._exit(7)
"""
CONNECTIONS = 4


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file. While the file exists, workers exit when they start."""
    file = tmp_path / "crash"
    (tmp_path / "sitecustomize.py").write_text(CRASHING.format(file=str(file)))
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
    return file


@dataclass
class Counters:
    """The counters of one client."""

    responses: int = 0
    port: int = 0
    """The local port of the client's first HTTP connection."""
    lost: list[str] = field(default_factory=list)
    """The errors that ended the client's connections. gRPC may send one more request on a lost
    connection."""


class Load:
    """Clients that send requests continuously. Each client has its own connection, which is
    replaced if it is lost."""

    def __init__(self, running: Infergate) -> None:
        self._running = running
        self._over = asyncio.Event()
        self.over_http = [Counters() for _ in range(CONNECTIONS)]
        self.over_grpc = [Counters() for _ in range(CONNECTIONS)]
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._http(each)) for each in self.over_http]
        self._tasks += [asyncio.create_task(self._grpc(each)) for each in self.over_grpc]
        await self.wait_for_responses(5)

    async def wait_for_responses(self, count: int) -> None:
        """Wait until each client has received ``count`` more responses."""
        targets = [(each, each.responses + count) for each in (*self.over_http, *self.over_grpc)]
        async with asyncio.timeout(100):
            while any(each.responses < target for each, target in targets):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _http(self, counters: Counters) -> None:
        client = await Client.connected(self._running.http)
        counters.port = client.port
        while not self._over.is_set():
            try:
                assert await client.send_request() == 200
                counters.responses += 1
                await asyncio.sleep(0.002)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                counters.lost.append(repr(error))
                client.close()
                client = await Client.connected(self._running.http)
        client.close()

    async def _grpc(self, counters: Counters) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._running.grpc, options) as channel:
            check = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            while not self._over.is_set():
                try:
                    await check(b"", wait_for_ready=True)
                    counters.responses += 1
                    await asyncio.sleep(0.002)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    counters.lost.append(error.details() or "")


async def test_a_killed_worker_is_replaced_unnoticed(crashing: Path) -> None:
    """Afterwards, a worker that crashes repeatedly and a killed supervisor are tested."""
    with several() as running:
        supervisor_fds, worker_fds = (
            descriptors(running.pid),
            max(map(descriptors, workers(running))),
        )
        with checks.watching(), limited_growth(running.pid, 64 * MIB):
            other = await kill_a_worker(running)
        until(
            lambda: descriptors(running.pid) <= supervisor_fds,
            "the supervisor has no more descriptors than before",
        )
        (new,) = {*workers(running)} - {other}
        until(lambda: descriptors(new) <= worker_fds, "the new worker has no more descriptors")
        until(lambda: at_rest(running), "no request is in progress")

        await crash_repeatedly(running, crashing)
        await kill_the_supervisor(running)


async def kill_a_worker(running: Infergate) -> int:
    """Under load, kill the worker that has more connections, and wait for its replacement. Return
    the other worker."""
    load = Load(running)
    await load.begin()
    other, killed = sorted(workers(running), key=connections)
    counted_before = requests(running)
    assert 0 < counted_before <= sum(each.responses for each in load.over_http) + CONNECTIONS
    lost = connections(killed)
    lost_http = connections(killed, [each.port for each in load.over_http])
    assert lost >= CONNECTIONS
    kill(killed)
    await load.wait_for_responses(20)
    counters = (*load.over_http, *load.over_grpc)
    disconnected = [each for each in counters if each.lost]
    # gRPC reconnects unnoticed if no call is in progress.
    assert len(disconnected) <= lost, counters
    assert [len(each.lost) for each in load.over_http if each.lost] == [1] * lost_http, counters
    await asyncio.to_thread(until, lambda: is_ready(running), "the replacement is ready")
    assert other in workers(running)
    assert metric(running, "infergate_workers") == 2
    assert metric(running, "infergate_worker_restarts_total") == 1
    await load.end()
    assert requests(running) > counted_before  # the last metrics of the killed worker are kept
    assert [each for each in counters if each.lost] == disconnected
    assert event_kinds(running) == ["worker_started", "worker_ended", "start"]
    return other


def event_kinds(running: Infergate) -> list[str]:
    """Return the kinds of the events in the console's history. The newest comes first."""
    return [event["kind"] for event in get(running.admin, "/console/history").json["events"]]


async def crash_repeatedly(running: Infergate, crashing: Path) -> None:
    crashing.touch()  # noqa: ASYNC240 - no task waits
    killed, other = workers(running)
    kill(killed)

    def is_restarted_again() -> bool:
        return running.log.read_text().count("exit code 7; restarting it in ") >= 2

    await asyncio.to_thread(until, is_restarted_again, "the worker is restarted again")
    client = await Client.connected(running.http)
    assert await client.send_request() == 200
    client.close()
    assert not is_ready(running)
    assert metric(running, "infergate_workers") == 1
    crashing.unlink()  # noqa: ASYNC240 - no task waits
    await asyncio.to_thread(until, lambda: is_ready(running), "the worker has recovered")
    assert other in workers(running)


async def kill_the_supervisor(running: Infergate) -> None:
    pids = [running.pid, *workers(running)]
    kill(running.pid)
    await asyncio.to_thread(
        until, lambda: not any(map(lives, pids)), "workers end with their supervisor"
    )
    host, _, port = running.http.rpartition(":")

    def is_free() -> bool:
        """Return whether nothing listens on the port. A thread may briefly outlive its process."""
        with socket.socket() as other:
            return other.connect_ex((host, int(port))) == errno.ECONNREFUSED

    await asyncio.to_thread(until, is_free, "the port is free")


def test_a_gateway_exits_if_its_first_workers_cannot_start(crashing: Path, tmp_path: Path) -> None:
    crashing.touch()
    file = tmp_path / "routes.yaml"
    listeners = 'listeners: {http: {address: "127.0.0.1:0"}, grpc: null, admin: null}\n'
    file.write_text(listeners + DEMO)
    gateway = subprocess.run(
        [sys.executable, "-m", "infergate", "--config", str(file), "--workers", "2"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert gateway.returncode == 7
    assert re.search(r"worker \d ended: exit code 7", gateway.stderr)
    assert "Traceback" not in gateway.stderr
