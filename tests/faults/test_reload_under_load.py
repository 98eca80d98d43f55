"""Tests reloads while clients of V2, the legacy protocols and GraphPipe send requests and stream.
No request fails, and nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.frames import raw_listener
from faults.load import STREAM, Load, stream_values, streamed
from faults.low_limits import good
from faults.peer import post
from faults.watch import counted, descriptors, logged_bugs, metric, resident, unharmed, until

MIB = 1 << 20
UPSTREAM = """
backends: {ours: {protocol: builtin}}
routes: [{model: "*", backend: ours}]
log: {access: false}
"""
FRONT = """
reload: {{watch: false, post: true}}
log: {{access: false}}
helpers: 0
backends:
  ours: {{protocol: builtin, timeout: {timeout}s}}
  rest: {{protocol: v2-rest, endpoints: ["http://{upstream.http}"], timeout: {timeout}s}}
  rpc: {{protocol: v2-grpc, endpoints: ["grpc://{upstream.grpc}"], timeout: {timeout}s}}
  old-http: {{protocol: trtis-http, endpoints: ["http://{upstream.http}"]}}
  old-rpc: {{protocol: trtis-grpc, endpoints: ["grpc://{upstream.grpc}"], timeout: {timeout}s}}
  pipe: {{protocol: graphpipe, endpoints: ["http://{upstream.http}/graphpipe/identity"]}}
routes:
  - {{model: "/rest\\\\.(.*)/", backend: rest, rewrite: {{model: "\\\\1"}}}}
  - {{model: "/rpc\\\\.(.*)/", backend: rpc, rewrite: {{model: "\\\\1"}}}}
  - {{model: "/old-http\\\\.(.*)/", backend: old-http, rewrite: {{model: "\\\\1"}}}}
  - {{model: "/old-rpc\\\\.(.*)/", backend: old-rpc, rewrite: {{model: "\\\\1"}}}}
  - {{model: "/pipe\\\\.(.*)/", backend: pipe, rewrite: {{model: "\\\\1"}}}}
  - {{model: "*", backend: ours}}
limits: {{tensors: {tensors}}}
"""
MODELS = [
    "identity",
    *(f"{each}.identity" for each in ("rest", "rpc", "old-http", "old-rpc", "pipe")),
]
REPEATS = ["repeat", "rpc.repeat"]
ENGINES = ("own", "compat")
RELOADS = 25
MAX_NEW_CONNECTIONS = 16
"""Connections to the five backends, for eight clients. Three of the backends get one client
each."""


@dataclass
class Harness:
    gateway: Infergate
    upstream: Infergate
    frames: str
    file: Path
    number: Iterator[int]
    front: str

    def write(self) -> None:
        """Write another configuration. Sometimes the limits differ as well, so that all backends
        are replaced."""
        number = next(self.number)
        text = self.file.read_text()
        listeners = text[: text.index("drain:")]
        rest = self.front.format(
            upstream=self.upstream, timeout=20 + number % 3, tensors=100 + number % 10 // 5
        )
        self.file.write_text(f"{listeners}drain: {{delay: 0s}}\n# {number}{rest}")

    def reload(self) -> dict[str, Any]:
        answer = post(self.gateway.admin, "/reload")
        page: dict[str, Any] = answer.json
        assert answer.status == 200, page
        return page


@pytest.fixture(scope="module")
def upstream() -> Iterator[Infergate]:
    with started_infergate(UPSTREAM) as running:
        yield running


@pytest.fixture(params=ENGINES)
def harness(request: pytest.FixtureRequest, upstream: Infergate) -> Iterator[Harness]:
    with started_harness(upstream, request.param) as harness:
        yield harness


@contextmanager
def started_harness(upstream: Infergate, engine: str, front: str = FRONT) -> Iterator[Harness]:
    listener, raw = raw_listener()
    config = front.format(upstream=upstream, timeout=30, tensors=100)
    with started_infergate(config, LISTENERS + listener, engine) as gateway:
        file = gateway.log.parent / "routes.yaml"
        yield Harness(gateway, upstream, raw, file, itertools.count(1), front)


async def test_reloads_under_mixed_load(harness: Harness) -> None:
    with unharmed(
        harness.gateway, lambda: good(harness.gateway), max_new_descriptors=MAX_NEW_CONNECTIONS
    ):
        served = await reload_often(harness)
    assert counted(harness.gateway) == counted(harness.gateway, outcome="ok") > served


@pytest.mark.peers
async def test_reloads_of_two_workers_under_mixed_load(upstream: Infergate) -> None:
    """A reload is reported once both workers have the configuration. Until then, either
    configuration may serve a request."""
    with started_harness(upstream, "own", f"{FRONT}workers: 2\n") as harness:
        load, gateway = Load(), harness.gateway
        addresses = {"http": gateway.http, "grpc": gateway.grpc, "frames": harness.frames}
        with unharmed(gateway, lambda: good(gateway), max_new_descriptors=MAX_NEW_CONNECTIONS):
            async with asyncio.timeout(120), load.applied(addresses, MODELS, REPEATS):
                for number in range(20):
                    harness.write()
                    page = await asyncio.to_thread(harness.reload)
                    assert page["number"] == number + 2
                    await load.wait_for_responses(8)
        assert [each.opened for each in load.connections] == [1] * len(load.connections)
        assert counted(gateway) == counted(gateway, outcome="ok") > 100
        assert metric(gateway, "infergate_config_reloads_total", result="ok") == 20


async def reload_often(harness: Harness) -> int:
    """Reload under load. Return the number of requests that were served meanwhile."""
    gateway = harness.gateway
    load = Load()
    addresses = {"http": gateway.http, "grpc": gateway.grpc, "frames": harness.frames}
    sizes: list[int] = []
    limit = 0
    async with asyncio.timeout(120), grpc.aio.insecure_channel(gateway.grpc) as channel:
        lasting = channel.stream_stream(STREAM)()
        async with load.applied(addresses, MODELS, REPEATS):
            for number in range(RELOADS):
                harness.write()
                page = await asyncio.to_thread(harness.reload)
                assert page["number"] == number + 2
                await lasting.write(streamed("repeat", 2, 0))
                assert await stream_values(lasting, 2) == [0, 1]
                await load.wait_for_responses(8)
                if number == 9:
                    limit = await asyncio.to_thread(descriptors, gateway.pid)
                sizes.append(resident(gateway.pid))
        assert len(load.served) == 7, load.served
        # Each client has kept its connection.
        assert [each.opened for each in load.connections] == [1] * len(load.connections)
        assert "infergate_config_generations 2.0" in gateway.metrics()
        await lasting.done_writing()
        assert await lasting.read() is grpc.aio.EOF
        until(
            lambda: "infergate_config_generations 1.0" in gateway.metrics(),
            "old connections are closed",
        )
    assert metric(gateway, "infergate_config_reloads_total", result="ok") == RELOADS
    assert metric(gateway, "infergate_config_reloads_total", result="failed") == 0
    assert metric(gateway, "infergate_config_last_reload_successful") == 1
    until(lambda: descriptors(gateway.pid) <= limit, f"descriptors are back to {limit}")
    assert sizes[-1] - sizes[9] < 12 * MIB, sizes
    assert logged_bugs(gateway) == ""
    assert logged_bugs(harness.upstream) == ""
    return sum(load.served.values())
