"""How a supervisor hears the metrics of its workers."""

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


class Site:
    """A supervisor whose workers are played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.supervisor = Supervisor(
            Config.default().model_copy(update={"workers": 2}), ConfigHistory()
        )
        self.workers = [Metrics(), Metrics()]
        self.telling: dict[int, Iterator[list[Metric]]] = {}
        self.asked: list[int] = []
        self.answers = asyncio.Event()
        """Worker 1 does."""
        self.answers.set()
        self.silent_after: int | None = None
        """Worker 1 answers so many questions more."""
        for place in self.supervisor._slots:
            place.worker, place.is_serving = place.number, True  # type: ignore[assignment]
        serving = [(place, place.number) for place in self.supervisor._slots]
        monkeypatch.setattr(self.supervisor, "_serving", lambda: serving)
        monkeypatch.setattr(self.supervisor, "_request", self.ask)

    async def ask(self, worker: int, question: CollectMetrics, seconds: float) -> Any:
        await asyncio.sleep(0)
        if worker == 1:
            await self.answers.wait()
        self.asked.append(worker)
        if worker == 1 and self.silent_after is not None:
            if self.silent_after == 0:
                return None
            self.silent_after -= 1
        if question.restart:
            self.telling[worker] = in_batches(self.workers[worker].registry.collect())
        return pickle.loads(pickle.dumps(next(self.telling[worker], [])))

    def count(self, worker: int, route: str = "m") -> None:
        self.workers[worker].record(RequestRecord(route=route), 0.1)

    async def scraped(self, route: str = "m") -> float:
        """How many requests of ``route`` the metrics tell."""
        told = await self.supervisor._scrape("")
        lines = b"".join(told.chunks).decode().splitlines()
        counts = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("infergate_requests_total") and f'route="{route}"' in line
        ]
        return sum(counts)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    made = Site(monkeypatch)
    yield made
    for place in made.supervisor._slots:
        place.worker, place.is_serving = None, False
    monkeypatch.undo()
    await made.supervisor.stop(0)


async def test_what_workers_tell_in_pieces_is_added_up(site: Site) -> None:
    for number in range(ROUTES):
        for worker in (0, 1):
            site.count(worker, f"r{number}")
    assert [await site.scraped(f"r{number}") for number in (0, ROUTES - 1)] == [2, 2]
    assert site.asked.count(0) > 10, "there were several pieces"


async def test_a_worker_that_falls_silent_counts_as_it_last_did(site: Site) -> None:
    for worker in (0, 1):
        for number in range(ROUTES):
            site.count(worker, f"r{number}")
        site.count(worker)
    assert await site.scraped() == 2
    for worker in (0, 1):
        site.count(worker)
        site.count(worker, "r0")
    site.silent_after = 2
    assert await site.scraped() == 3
    assert await site.scraped("r0") == 3, "of what it told in part nothing is taken"
    site.silent_after = None
    assert await site.scraped() == 4


async def test_who_asks_while_others_do_is_told_what_they_are(site: Site) -> None:
    for worker in (0, 1):
        site.count(worker)
    await site.scraped()
    once = len(site.asked)
    first = asyncio.create_task(site.scraped())
    others = [asyncio.create_task(site.scraped()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()  # and goes: the others are told all the same
    assert await asyncio.gather(*others) == [2] * 5
    assert len(site.asked) == 2 * once


async def test_a_worker_that_tells_slowly_holds_up_no_scrape(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in (0, 1):
        site.count(worker)
    assert await site.scraped() == 2
    for worker in (0, 1):
        site.count(worker)
    monkeypatch.setattr("infergate.runtime.workers.supervisor._COLLECT_TIMEOUT_SECONDS", 0.5)
    site.answers.clear()
    async with asyncio.timeout(100):
        assert await site.scraped() == 3
    hearing = site.supervisor._collection
    assert hearing is not None
    site.answers.set()
    await hearing  # it goes on
    assert site.supervisor._slots[1].last_metrics
    assert await site.scraped() == 4


async def test_others_have_their_turns_while_metrics_are_added_up(site: Site) -> None:
    for number in range(ROUTES):
        for worker in (0, 1):
            site.count(worker, f"r{number}")
    await site.supervisor._collect_metrics()
    pieces = sum(len(place.last_metrics) for place in site.supervisor._slots)
    turns = 0
    adding = asyncio.create_task(site.supervisor._sum_metrics())
    while not adding.done():
        turns += 1
        await asyncio.sleep(0)
    assert pieces > 10
    assert turns > 10


async def test_what_a_worker_counted_before_it_ended_counts_on(site: Site) -> None:
    for worker in (0, 1):
        site.count(worker, "*")
    assert await site.scraped("*") == 2
    site.count(1, "gone")
    assert await site.scraped("gone") == 1
    site.supervisor._clear_slot(site.supervisor._slots[1])
    site.workers[1] = Metrics()
    assert await site.scraped("*") == 2
    assert await site.scraped("gone") == 0, "the configuration has no such route"
