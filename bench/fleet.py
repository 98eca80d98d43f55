"""``python -m bench.fleet`` measures several gateways and servers, each on its own machine.

It needs root and network namespaces (``lan``). docs/scaling.md has the results of:

- *speed*: requests per second and CPU per request of one gateway, of two gateways and so on, each
with the same share of a processor. The gateways share nothing, so their throughput should add up.

- *sequences*: each step of a sequence goes through any gateway, and a correct sum shows that one
  server got all steps.

- *a gateway dies*, *a gateway drains*, *a server is added*: the effects for clients.

The servers are instances of infergate with the embedded models. The client checks the readiness of
each gateway, as a load balancer does."""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench import proc
from bench.lan import Lan, Machine, limited

SHARE = 0.1
"""Each gateway's share of a processor while speed is measured."""
_SERVER = """
listeners:
  http: {address: "0.0.0.0:8000"}
  grpc: {address: "0.0.0.0:8001"}
  admin: {address: "0.0.0.0:8002"}
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
log: {access: false}
"""
_GATEWAY = """
listeners:
  http: {address: "0.0.0.0:8000"}
  grpc: {address: "0.0.0.0:8001"}
  admin: {address: "0.0.0.0:8002"}
backends:
  servers:
    protocol: v2-grpc
    endpoints: ["grpc://servers:8001"]
    dns_refresh: 500ms
    health: {interval: 1s}
routes: [{model: "*", backend: servers}]
readiness: lenient
drain: {delay: 3s, timeout: 10s}
log: {access: false}
"""
_START = "must specify the START flag"
_PATIENCE = 100.0


@dataclass
class FleetResults:
    """The results. ``speed`` has a row for each number of gateways, with requests/s and µs of CPU
    per request."""

    speed: list[tuple[int, float, float]] = field(default_factory=list)
    sequences: dict[str, Any] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    joined: dict[str, Any] = field(default_factory=dict)


class Client:
    """A client that knows all gateways and uses those that are ready."""

    def __init__(self, session: aiohttp.ClientSession, gateways: Sequence[Machine]) -> None:
        self._session = session
        self.gateways = list(gateways)
        self.ready = list(gateways)
        self.outcomes: Counter[str] = Counter()

    async def get(self, machine: Machine, path: str) -> tuple[int, str]:
        """Return the status and the text of a response from the machine's admin port, or status 0
        if there is no response."""
        try:
            async with self._session.get(f"http://{machine.address}:8002{path}") as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError):
            return 0, ""

    async def watch(self) -> None:
        """Check the readiness of all gateways, as a load balancer does."""
        while True:
            results = [(each, await self.get(each, "/readyz")) for each in self.gateways]
            self.ready = [each for each, (status, _) in results if status == 200]
            await asyncio.sleep(0.2)

    async def infer(self, machine: Machine, model: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the response. Raises aiohttp.ClientError if there is no
        response."""
        url = f"http://{machine.address}:8000/v2/models/{model}/infer"
        async with self._session.post(url, json=body) as response:
            return response.status, await response.json()

    async def send_requests(self, deadline: float, machine: Machine | None = None) -> None:
        """Send one request after the other until ``deadline``, to any ready gateway or to
        ``machine``."""
        body = {
            "inputs": [
                {"name": "INPUT0", "datatype": "INT32", "shape": [16], "data": list(range(16))}
            ]
        }
        while time.monotonic() < deadline:
            try:
                chosen = machine or random.choice(self.ready)
                status, _ = await self.infer(chosen, "identity", body)
                self.outcomes[str(status)] += 1
            except (aiohttp.ClientError, OSError):
                self.outcomes["broken"] += 1

    async def step(self, sequence: str, value: int, *, start: bool) -> int | str:
        """Send a step of ``sequence`` to any gateway that accepts a connection. Return the sum so
        far, or the error."""
        parameters: dict[str, Any] = {"sequence_id": sequence, "sequence_start": start}
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1], "data": [value]}
        body = {"inputs": [tensor], "parameters": parameters}
        for machine in random.sample(self.ready, len(self.ready)):
            try:
                status, content = await self.infer(machine, "accumulate", body)
            except aiohttp.ClientConnectorError:
                continue
            return int(content["outputs"][0]["data"][0]) if status == 200 else str(content["error"])
        return "no gateway"


async def until(condition: Callable[[], Any], description: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(description)
        await asyncio.sleep(0.1)


async def speed(client: Client, maximum: int, seconds: float) -> list[tuple[int, float, float]]:
    """Measure 1 to ``maximum`` gateways, with eight connections to each."""
    rows = []
    for count in range(1, maximum + 1):
        gateways = client.gateways[:count]
        client.outcomes.clear()
        before = [proc.cpu(each.processes[0].pid) for each in gateways]
        began = time.monotonic()
        await asyncio.gather(
            *(
                client.send_requests(began + seconds, machine)
                for machine in gateways
                for _ in range(8)
            )
        )
        seconds_taken = time.monotonic() - began
        used = sum(proc.cpu(m.processes[0].pid) - b for m, b in zip(gateways, before, strict=True))
        answered = client.outcomes["200"]
        assert answered == client.outcomes.total(), client.outcomes
        rows.append((count, answered / seconds_taken, used / answered))
    return rows


async def steps(client: Client, sums: dict[str, int], *, start: bool = False) -> Counter[str]:
    """Send a step of every sequence, and return the number of steps by outcome."""
    outcomes: Counter[str] = Counter()

    async def send_step(sequence: str) -> None:
        value = random.randrange(1000)
        result = await client.step(sequence, value, start=start)
        if isinstance(result, int):
            sums[sequence] = (0 if start else sums[sequence]) + value
            outcomes["right" if result == sums[sequence] else "wrong"] += 1
        else:
            outcomes["refused" if _START in result else "failed"] += 1

    sequences = list(sums)
    for begin in range(0, len(sequences), 50):
        await asyncio.gather(*(send_step(each) for each in sequences[begin : begin + 50]))
    return outcomes


async def inference_counts(client: Client, servers: Sequence[Machine]) -> list[int]:
    """Return the number of inferences of each server."""
    counts = []
    for server in servers:
        _, text = await client.get(server, "/metrics")
        lines = [line for line in text.splitlines() if 'operation="infer"' in line]
        samples = [line for line in lines if line.startswith("infergate_requests_total")]
        counts.append(round(sum(float(line.rpartition(" ")[2]) for line in samples)))
    return counts


async def has_found_servers(client: Client, count: int) -> bool:
    """Return whether every ready gateway has found ``count`` servers."""
    for gateway in client.ready:
        _, text = await client.get(gateway, "/metrics")
        lines = [line for line in text.splitlines() if 'state="available"' in line]
        if not lines or float(lines[0].rpartition(" ")[2]) != count:
            return False
    return True


@asynccontextmanager
async def readiness_checks(client: Client) -> AsyncIterator[None]:
    task = asyncio.create_task(client.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def under_load(client: Client, machine: Machine, number: signal.Signals) -> dict[str, int]:
    """Count outcomes of requests while one gateway receives the signal ``number`` under load."""
    client.outcomes.clear()
    async with readiness_checks(client):
        pending = [
            asyncio.create_task(client.send_requests(time.monotonic() + 7)) for _ in range(24)
        ]
        await asyncio.sleep(2)
        # The first process of the session is infergate, because sh has replaced itself with
        # infergate.
        machine.processes[0].send_signal(number)
        await asyncio.gather(*pending)
    await asyncio.to_thread(machine.processes[0].wait, _PATIENCE)
    client.gateways.remove(machine)
    client.ready = list(client.gateways)
    return dict(client.outcomes)


async def measure(lan: Lan, folder: Path, gateways: int, seconds: float) -> FleetResults:
    config = folder / "gateway.yaml"
    config.write_text(_GATEWAY)
    (folder / "server.yaml").write_text(_SERVER)
    infergate = [sys.executable, "-m", "infergate", "--config"]
    servers = [lan.machine(f"s{number + 1}") for number in range(4)]
    for server in servers:
        server.start([*infergate, str(folder / "server.yaml")], folder)
    fronts = [lan.machine(f"g{number + 1}") for number in range(gateways)]
    for front in fronts:
        front.set_names({"servers": [each.address for each in servers[:3]]})
        front.start([*infergate, str(config)], folder)
    lan.enter(lan.machine("client"))
    results = FleetResults()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        client = Client(session, fronts)
        await until(lambda: has_found_servers(client, 3), "all gateways see three servers")
        if seconds:
            with limited(fronts, SHARE):
                results.speed = await speed(client, gateways, seconds)

        before = await inference_counts(client, servers)
        sums = {f"sequence-{number}": 0 for number in range(300)}
        outcomes = await steps(client, sums, start=True)
        for _ in range(3):
            outcomes += await steps(client, sums)
        after = await inference_counts(client, servers)
        increases = [(a - b) for a, b in zip(after, before, strict=True)]
        results.sequences = {**outcomes, "by_server": increases[:3]}

        results.killed = await under_load(client, fronts[-1], signal.SIGKILL)
        results.sequences["after_a_gateway_died"] = dict(await steps(client, sums))
        results.drained = await under_load(client, fronts[-2], signal.SIGTERM)

        for front in fronts:
            front.set_names({"servers": [each.address for each in servers]})
        await until(lambda: has_found_servers(client, 4), "all gateways see four servers")
        results.joined = dict(await steps(client, sums))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument(
        "--seconds", type=float, default=5, help="time for each number of gateways; 0 skips *speed*"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="infergate-") as folder, Lan(Path(folder)) as lan:
        results = asyncio.run(measure(lan, Path(folder), options.gateways, options.seconds))
    print(json.dumps(asdict(results)))


if __name__ == "__main__":
    main()
