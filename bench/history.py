"""``python -m bench.history`` measures the cost of the console's history.

The counters of a gateway with 200 routes, 50 backends and 100 endpoints grow as under 10,000
requests/s in five protocols, with client errors, failures, retries and ejections. The history
reads them for an hour of simulated time, at its usual interval. The table shows the memory after
the hour, as tracemalloc counts it and as the history counts it, and the CPU of a sample as a share
of the interval. The CPU of a sample does not depend on the number of requests."""

import argparse
import gc
import itertools
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

from infergate.core.request_record import RequestRecord
from infergate.core.stats import EndpointStats
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import RecentRequests, take_snapshot
from infergate.runtime.console.history import TrafficHistory
from infergate.runtime.console.history_sampler import SAMPLE_SECONDS
from infergate.runtime.gateway_events import GatewayEvents

_PROTOCOLS = ("v2-rest", "v2-grpc", "tfs-grpc", "trtis-http", "graphpipe")
_RATE = 10_000
_HOUR = 3600
_TRACED_INTERVAL = 60
_MB = 1_000_000
_START = 1_000_000.0


class Traffic:
    """The counters of a process with ``routes`` routes."""

    def __init__(self, routes: int, backends: int, endpoints: int) -> None:
        self.metrics = Metrics()
        self._records = [
            RequestRecord(protocol, "infer", route=f"model-{number}")
            for number in range(routes)
            for protocol in _PROTOCOLS
        ]
        for index, record in enumerate(self._records):
            record.backend = f"backend-{index // len(_PROTOCOLS) % backends}"
            record.backend_protocol, record.backend_seconds = "v2-grpc", 0.004
        self._backends = [f"backend-{number}" for number in range(backends)]
        self._endpoints = endpoints
        self._seconds = itertools.cycle((0.002, 0.005, 0.012, 0.03, 0.08, 0.4))
        self._step = 0
        self.metrics.endpoints.source = self._stats

    def advance(self, seconds: float = SAMPLE_SECONDS) -> None:
        """Add the requests of ``seconds``. Each series begins with a request of each outcome;
        then its counters are increased in one step."""
        self._step += 1
        if self._step == 1:
            for record in self._records:
                for outcome in ("ok", "bad_request", "timeout"):
                    self.metrics.record(replace(record, outcome=outcome), next(self._seconds))
        more = int(_RATE * seconds) // len(self._records)
        for series in self.metrics._requests._series.values():  # noqa: SLF001 - record() is too slow
            series.outcomes["ok"] += more - 2
            series.outcomes["bad_request"] += 1
            series.outcomes["timeout"] += 1
            series.seconds.counts[5] += more
        for name in self._backends:
            counters = self.metrics.backends.backend_counters(name)
            counters.retries["broken"] = counters.retries.get("broken", 0) + 1

    def _stats(self) -> list[EndpointStats]:
        return [
            EndpointStats(
                self._backends[number % len(self._backends)], f"grpc://10.0.0.{number}:8001",
                1, 0, 0, 4, ok=self._step * 500, failed=self._step, ejections=self._step // 60,
                checks_ok=self._step, checks_failed=0, lookups_failed=0,
            )
            for number in range(self._endpoints)
        ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the table, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--routes", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--backends", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--endpoints", type=int, default=100, help="default: %(default)s")
    options = parser.parse_args(argv)
    sizes = options.routes, options.backends, options.endpoints
    counted, traced = _memory(Traffic(*sizes))
    _, seconds = _samples(Traffic(*sizes), SAMPLE_SECONDS)
    print(f"{options.routes} routes in {len(_PROTOCOLS)} protocols, {_RATE:,} requests/s, one hour")
    print(f"memory, as tracemalloc counts it  {traced / _MB:8.1f} MB")
    print(f"memory, as the history counts it  {counted / _MB:8.1f} MB")
    print(f"CPU of a sample, minimum          {1000 * seconds[0]:8.1f} ms")
    print(f"CPU of a sample, median           {1000 * seconds[len(seconds) // 2]:8.1f} ms")
    print(f"share of a core, median           {seconds[len(seconds) // 2] / SAMPLE_SECONDS:8.2%}")
    return 0


def _samples(traffic: Traffic, interval: float) -> tuple[TrafficHistory, list[float]]:
    """Return the history of an hour, and the sorted CPU seconds of the samples."""
    history, recent, seconds = TrafficHistory(GatewayEvents()), RecentRequests(), []
    for number in range(int(_HOUR / interval)):
        traffic.advance(interval)
        began = time.process_time()
        snapshot = take_snapshot(recent, traffic.metrics)
        history.add([snapshot], _START + number * interval, number * interval)
        seconds.append(time.process_time() - began)
    return history, sorted(seconds)


def _memory(traffic: Traffic) -> tuple[int, int]:
    """Return the bytes that the history counts, and those that tracemalloc counts for it. The
    metrics' own counters are excluded. There is one sample a minute, because tracemalloc is
    slow."""
    traffic.advance()
    gc.collect()
    tracemalloc.start()
    history, _ = _samples(traffic, _TRACED_INTERVAL)
    with_history, _ = tracemalloc.get_traced_memory()
    counted = history.nbytes
    del history
    gc.collect()
    without_history, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return counted, with_history - without_history


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
