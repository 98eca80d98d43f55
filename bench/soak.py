"""``python -m bench.soak`` sends requests of every kind to a gateway while its servers fail and its
configuration changes. About one request in a hundred is broken or an attack. The soak reports every
leak and every failure that no outage explains.

The gateway has every feature enabled (``soak_deployment``). Clients of every protocol verify each
response (``soak_traffic``), and some clients attack (``soak_attackers``). Meanwhile, one server at
a time is killed, cut off, stalled or made to send garbage (``soak_outages``). An outage explains
only failures that overlap it, on routes that do not promise to survive outages. The gateway, and
the server that is never stopped, are monitored from outside with all their processes.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))  # the tests start gateways in the same way
# Servers are forked from a process that has gRPC channels. In the child, gRPC would start its own
# threads, which abort the child before it becomes the server.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from e2e.running import Infergate  # noqa: E402
from faults.watch import children, descriptors, logged_bugs, resident  # noqa: E402

from .soak_deployment import SoakGateway, SoakServer, Trust  # noqa: E402
from .soak_outages import Disturbances, Reloads  # noqa: E402
from .soak_traffic import Traffic  # noqa: E402
from .soak_verdict import (  # noqa: E402
    Counts,
    Outages,
    Size,
    State,
    errors,
    features,
    largest,
    metric_sum,
    problems,
    steady,
    table,
)

_CALM = 100.0
"""Seconds after which leftovers of the traffic must have disappeared."""
_ROUNDS = 10
_STEADY = 6
"""The number of samples, one a second. They span more time than idle connections stay open."""
_EXPECTED_ERROR = "configuration rejected; the previous configuration stays active"
"""The log message that a soak provokes on purpose."""


def _family(pid: int) -> list[int]:
    pids = [pid]
    with contextlib.suppress(FileNotFoundError):
        for each in children(pid):
            pids += _family(each)
    return pids


def _memory_and_descriptors(gateway: Infergate) -> tuple[int, int]:
    """Return the memory in bytes, and the number of descriptors, of all processes of
    ``gateway``."""
    memory = files = 0
    for pid in _family(gateway.pid):
        with contextlib.suppress(FileNotFoundError, KeyError):  # the process has just ended
            memory += resident(pid)
            files += descriptors(pid)
    return memory, files


def _state(gateway: Infergate) -> State:
    metrics = gateway.metrics()
    return State(
        *_memory_and_descriptors(gateway),
        int(metric_sum(metrics, "infergate_tasks")),
        int(metric_sum(metrics, "infergate_in_flight_requests")),
        int(metric_sum(metrics, "infergate_open_streams")),
        int(metric_sum(metrics, "infergate_config_generations")),
    )


async def _sample_memory(
    gateways: Mapping[str, Infergate], began: float, until: float, sizes: Mapping[str, list[Size]]
) -> None:
    while time.monotonic() < until:
        for name, gateway in gateways.items():
            sizes[name].append(Size(time.monotonic() - began, _memory_and_descriptors(gateway)[0]))
        await asyncio.sleep(1)


async def _settle(gateway: Infergate) -> State:
    """Wait until descriptors and tasks only fluctuate, and return the state with their maxima."""
    samples: list[State] = []
    while len(samples) < _STEADY or not steady(samples[-_STEADY:]):
        samples.append(await asyncio.to_thread(_state, gateway))
        await asyncio.sleep(1)
    return largest(samples[-_STEADY:])


async def _state_after_traffic(gateway: Infergate, before: State) -> State:
    """Return the state after all clients have left, or after a long timeout."""
    deadline = time.monotonic() + _CALM
    while True:
        state = await asyncio.to_thread(_state, gateway)
        is_calm = not problems("", before, (), state, "")
        if is_calm or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.5)


def _unexpected_errors(gateway: Infergate) -> str:
    errors = logged_bugs(gateway).splitlines()
    return "\n".join(line for line in errors if _EXPECTED_ERROR not in line)


async def _soak(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="infergate-soak-") as folder:
        trust = Trust(Path(folder) / "tls")
        left, right = (SoakServer(name, options.engine, trust) for name in ("left", "right"))
        front = SoakGateway(options.engine, options.workers, trust, (left, right))
        try:
            await asyncio.gather(left.start(), right.start())
            with front.started():
                return await _run(options, front, left, right)
        finally:
            await asyncio.gather(left.close(), right.close())


async def _warm_up(front: SoakGateway, left: SoakServer, callers: int) -> Counter[str]:
    """Make each kind of request once, so that objects that are created on first use exist. Repeat
    this for workers that received too few requests. Return the errors."""
    unexplained: Counter[str] = Counter()
    for _ in range(_ROUNDS):
        first = Traffic(front.listeners(), left.listeners(), Outages(), front.engine)
        await first.request_everything(callers)
        await first.close()
        unexplained += first.counts.unexplained
        if len(_family(front.gateway.pid)) >= front.processes:
            break
    last = Traffic(front.listeners(), left.listeners(), Outages(), front.engine)
    await last.make_every_attack()
    await last.close()
    return unexplained + last.counts.unexplained


async def _run(
    options: argparse.Namespace, front: SoakGateway, left: SoakServer, right: SoakServer
) -> int:
    outages = Outages()
    unexplained = await _warm_up(front, left, options.callers)
    gateways = {"the gateway": front.gateway, "a server": left.gateway}
    states = await asyncio.gather(*map(_settle, gateways.values()))
    before = dict(zip(gateways, states, strict=True))
    sizes: dict[str, list[Size]] = {name: [] for name in gateways}
    began = time.monotonic()
    traffic = Traffic(front.listeners(), left.listeners(), outages, front.engine)
    disturbances = Disturbances(front, left, right, outages, traffic.counts)
    reloads = Reloads(front, traffic.counts)
    until = began + options.seconds
    async with asyncio.TaskGroup() as group:
        group.create_task(_sample_memory(gateways, began, until, sizes))
        group.create_task(disturbances.run(until, options.outage))
        group.create_task(reloads.run(until, options.reload))
        for _ in range(options.callers):
            pause = options.callers / options.rate
            group.create_task(traffic.caller(until, pause, options.faults / 100))
    lasted = time.monotonic() - began
    await traffic.close()
    traffic.counts.unexplained += unexplained
    findings = errors(traffic.counts)
    print(f"{lasted:.0f} s, engine {options.engine}, workers {options.workers}")
    for name, gateway in gateways.items():
        after = await _state_after_traffic(gateway, before[name])
        workers = options.workers if gateway is front.gateway else 1
        unexpected = _unexpected_errors(gateway)
        print(table(name, before[name], sizes[name], after))
        findings += problems(name, before[name], sizes[name], after, unexpected, workers=workers)
    print(features(front.gateway.metrics()))
    _print_counts(traffic.counts)
    _print_outages(outages)
    for each in findings:
        print(f"FOUND: {each}")
    return 1 if findings else 0


def _print_counts(counts: Counts) -> None:
    for kind in ("good", "faults", "explained", "unexplained"):
        counter = getattr(counts, kind)
        print(f"{kind}: {counter.total()}")
        for name, count in sorted(counter.items()):
            print(f"  {count:7} {name}")


def _print_outages(outages: Outages) -> None:
    """Print the times of the outages by the clock of the log."""
    offset = time.time() - asyncio.get_running_loop().time()
    for each in outages.all:
        began = time.strftime("%H:%M:%S", time.gmtime(offset + each.began))
        print(f"outage at {began} for {each.ended - each.began:.1f} s: {each.name}")


def main(argv: Sequence[str]) -> int:
    """Return 0, or 1 after a leak or an unexplained failure."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="default: %(default)s")
    parser.add_argument("--engine", default="own", help="own or compat; default: %(default)s")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of the gateway")
    parser.add_argument("--rate", type=float, default=100.0, help="calls per second")
    parser.add_argument("--callers", type=int, default=16, help="concurrent callers")
    parser.add_argument("--faults", type=float, default=1.0, help="percentage of broken calls")
    parser.add_argument("--outage", type=float, default=5.0, help="seconds between two outages")
    parser.add_argument("--reload", type=float, default=10.0, help="seconds between two reloads")
    return asyncio.run(_soak(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
