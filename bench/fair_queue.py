"""``python -m bench.fair_queue`` measures how a flood from one client affects another client.

A server responds to each inference after 50 to 150 ms, and gets at most 8 inferences at a time
(``max_requests: 8``), so it serves 80 inferences per second. A steady client sends 10 per second.
Meanwhile, another client keeps 150 inferences in progress, and waits for 500 ms after each
rejection. docs/overload.md has the results: the steady client alone, during the flood, and with the
flood's identity, so that the queue treats both as one client.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from peers.support.process import Launch, free_ports, started

SERVICE_SECONDS = (0.05, 0.15)
STEADY_RATE = 10
FLOOD = 150
_RETRY_SECONDS = 0.5
_MODEL = "/v2/models/m/infer"
_OUTPUT = {"name": "y", "datatype": "INT32", "shape": [1], "data": [1]}
_RESPONSE = json.dumps({"model_name": "m", "outputs": [_OUTPUT]})
_REQUEST = json.dumps({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]})
_CONFIG = """
engine: own
listeners:
  http: {address: "127.0.0.1:%d"}
  grpc: {address: "127.0.0.1:%d"}
  admin: {address: "127.0.0.1:%d"}
access:
  keys: [{name: steady, sha256: %s}, {name: flood, sha256: %s}]
  rules: [{who: ["*"]}]
backends:
  slow:
    protocol: v2-rest
    profile: triton
    endpoints: ["http://127.0.0.1:%d"]
    limits: {max_requests: 8, max_queue: 100}
routes: [{model: "*", backend: slow}]
log: {access: false}
"""


@dataclass
class Results:
    """The response times of a client in seconds, and the number of its responses by status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """Return a percentile in milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[int(share * (len(ordered) - 1))]


async def _infer(_: web.Request) -> web.Response:
    await asyncio.sleep(random.uniform(*SERVICE_SECONDS))
    return web.Response(text=_RESPONSE, content_type="application/json")


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_post(_MODEL, _infer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def _send(session: aiohttp.ClientSession, key: str, results: Results) -> int:
    began = time.perf_counter()
    headers = {"authorization": f"Bearer {key}"}
    async with session.post(_MODEL, data=_REQUEST, headers=headers) as response:
        await response.read()
    results.statuses[response.status] += 1
    if response.status == 200:
        results.seconds.append(time.perf_counter() - began)
    return response.status


async def _measure(
    url: str, seconds: float, key: str, *, has_flood: bool
) -> tuple[Results, Results]:
    """Return the results of the steady client, which uses ``key``, and of the flood."""
    steady, flood = Results(), Results()
    rng = random.Random(5)
    async with (
        aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as group,
    ):

        async def keep_busy() -> None:
            while True:
                if await _send(session, "flood", flood) != 200:
                    await asyncio.sleep(_RETRY_SECONDS)

        flooding = [group.create_task(keep_busy()) for _ in range(FLOOD if has_flood else 0)]
        await asyncio.sleep(2)
        flood.statuses.clear()
        began = asyncio.get_running_loop().time()
        sending = []
        for number in range(int(seconds * STEADY_RATE)):
            at = began + (number + rng.random()) / STEADY_RATE
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            sending.append(group.create_task(_send(session, key, steady)))
        await asyncio.wait(sending)
        for task in flooding:
            task.cancel()
    return steady, flood


async def _run(seconds: float) -> None:
    async with _server() as port:

        def prepare(folder: Path) -> Launch:
            ports = free_ports(3)
            digests = [hashlib.sha256(key.encode()).hexdigest() for key in ("steady", "flood")]
            file = folder / "routes.yaml"
            file.write_text(_CONFIG % (*ports, *digests, port))
            argv = [sys.executable, "-m", "infergate", "--config", str(file)]
            admin_last = [*ports[2:], *ports[:2]]
            return Launch("infergate", argv, dict(os.environ), admin_last, ready="/healthz")

        context = started(prepare)
        gateway = await asyncio.to_thread(context.__enter__)
        try:
            url = f"http://{gateway.addresses[1]}"
            print("| the steady client | p50 | p99 | refused | the flood's responses per second |")
            print("|---|---|---|---|---|")
            for name, key, has_flood in (
                ("alone", "steady", False),
                ("during the flood of another client", "steady", True),
                ("as the same client as the flood", "flood", True),
            ):
                steady, flood = await _measure(url, seconds, key, has_flood=has_flood)
                rejected = 1 - steady.statuses[200] / steady.statuses.total()
                times = [f"{steady.percentile(share):.0f} ms" for share in (0.5, 0.99)]
                cells = [name, *times, f"{rejected:.0%}", f"{flood.statuses[200] / seconds:.0f}"]
                print("|", " | ".join(cells), "|", flush=True)
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure how one client's flood affects another.")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each row")
    asyncio.run(_run(parser.parse_args().seconds))
