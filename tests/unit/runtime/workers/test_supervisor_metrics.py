"""Collection of workers' metrics by the supervisor."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prometheus_client.core import Metric

from infergate.config.schema import Config
from infergate.core.request_record import RequestRecord
from infergate.observe.family import in_batches
from infergate.observe.metrics import Metrics
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.workers.messages import CollectMetrics
from infergate.runtime.workers.supervisor import Supervisor

ROUTES = 500


class Harness:
    """A supervisor with simulated workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.supervisor = Supervisor(
            Config.default().model_copy(update={"workers": 2}), ConfigHistory()
        )
        self.workers = [Metrics(), Metrics()]
        self.reporting: dict[int, Iterator[list[Metric]]] = {}
        self.requests: list[int] = []
        self.responds = asyncio.Event()
        """Worker 1 responds while this is set."""
        self.responds.set()
        self.silent_after: int | None = None
        """The number of requests to which worker 1 still responds, or ``None`` for all requests."""
        for slot in self.supervisor._slots:
            slot.worker, slot.is_serving = slot.number, True  # type: ignore[assignment]
        serving = [(slot, slot.number) for slot in self.supervisor._slots]
        monkeypatch.setattr(self.supervisor, "_serving", lambda: serving)
        monkeypatch.setattr(self.supervisor, "_request", self.respond)

    async def respond(self, worker: int, message: CollectMetrics, seconds: float = 1.0) -> Any:
        await asyncio.sleep(0)
        if worker == 1:
            await self.responds.wait()
        self.requests.append(worker)
        if worker == 1 and self.silent_after is not None:
            if self.silent_after == 0:
                return None
            self.silent_after -= 1
        if message.restart:
            self.reporting[worker] = in_batches(self.workers[worker].registry.collect())
        return pickle.loads(pickle.dumps(next(self.reporting[worker], [])))

    def count(self, *workers: int, route: str = "m") -> None:
        """Count a request of ``route`` in each of ``workers``."""
        for worker in workers:
            self.workers[worker].record(RequestRecord(route=route), 0.1)

    async def scrape(self, route: str = "m") -> float:
        """Return the number of requests of ``route`` in the metrics."""
        response = await self.supervisor._scrape("")
        lines = b"".join(response.chunks).decode().splitlines()
        counts = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("infergate_requests_total") and f'route="{route}"' in line
        ]
        return sum(counts)


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    created = Harness(monkeypatch)
    yield created
    for slot in created.supervisor._slots:
        slot.worker, slot.is_serving = None, False
    monkeypatch.undo()
    await created.supervisor.stop(0)


async def test_metrics_received_in_pieces_are_added(harness: Harness) -> None:
    for number in range(ROUTES):
        harness.count(0, 1, route=f"r{number}")
    assert [await harness.scrape(f"r{number}") for number in (0, ROUTES - 1)] == [2, 2]
    assert harness.requests.count(0) > 10, "the metrics came in several pieces"


async def test_a_silent_workers_last_metrics_are_used(harness: Harness) -> None:
    for number in range(ROUTES):
        harness.count(0, 1, route=f"r{number}")
    harness.count(0, 1)
    assert await harness.scrape() == 2
    harness.count(0, 1)
    harness.count(0, 1, route="r0")
    harness.silent_after = 2
    assert await harness.scrape() == 3
    assert await harness.scrape("r0") == 3, "an incomplete snapshot is discarded"
    harness.silent_after = None
    assert await harness.scrape() == 4


async def test_concurrent_callers_get_the_same_result(harness: Harness) -> None:
    harness.count(0, 1)
    await harness.scrape()
    per_scrape = len(harness.requests)
    first = asyncio.create_task(harness.scrape())
    others = [asyncio.create_task(harness.scrape()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()  # the others still get the result
    assert await asyncio.gather(*others) == [2] * 5
    assert len(harness.requests) == 2 * per_scrape


async def test_a_slow_worker_does_not_delay_a_scrape(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.count(0, 1)
    assert await harness.scrape() == 2
    harness.count(0, 1)
    monkeypatch.setattr("infergate.runtime.workers.supervisor._COLLECT_TIMEOUT_SECONDS", 0.5)
    harness.responds.clear()
    async with asyncio.timeout(100):
        assert await harness.scrape() == 3
    collection = harness.supervisor._collection
    assert collection is not None
    harness.responds.set()
    await collection
    assert harness.supervisor._slots[1].last_metrics
    assert await harness.scrape() == 4


async def test_the_event_loop_runs_while_metrics_are_added(harness: Harness) -> None:
    for number in range(ROUTES):
        harness.count(0, 1, route=f"r{number}")
    await harness.supervisor._collect_metrics()
    pieces = sum(len(slot.last_metrics) for slot in harness.supervisor._slots)
    iterations = 0
    summing = asyncio.create_task(harness.supervisor._sum_metrics())
    while not summing.done():
        iterations += 1
        await asyncio.sleep(0)
    assert pieces > 10
    assert iterations > 10


async def test_counters_of_an_exited_worker_are_kept(harness: Harness) -> None:
    harness.count(0, 1, route="*")
    assert await harness.scrape("*") == 2
    harness.count(1, route="gone")
    assert await harness.scrape("gone") == 1
    harness.supervisor._clear_slot(harness.supervisor._slots[1])
    harness.workers[1] = Metrics()
    assert await harness.scrape("*") == 2
    assert await harness.scrape("gone") == 0, "the configuration has no such route"
