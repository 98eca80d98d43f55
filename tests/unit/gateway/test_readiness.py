"""Readiness checks run one at a time. Their results are cached briefly for all watchers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fake_clock import Clock
from infergate.core.request_context import RequestContext
from infergate.gateway import readiness as module
from infergate.gateway.readiness import CACHE_SECONDS, POLL_SECONDS, Readiness
from waiting import until


class Backends:
    """Counts the checks of the backends. Each check waits until ``gate`` is set."""

    def __init__(self) -> None:
        self.is_ready = True
        self.requests = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def check(self, context: RequestContext) -> bool:
        self.requests += 1
        await self.gate.wait()
        return self.is_ready


async def test_concurrent_probes_share_one_check() -> None:
    backends = Backends()
    backends.gate.clear()
    readiness = Readiness(backends.check, Clock())
    probes = [asyncio.ensure_future(readiness.is_ready()) for _ in range(100)]
    await until(lambda: backends.requests == 1)
    backends.gate.set()
    assert await asyncio.gather(*probes) == [True] * 100
    assert backends.requests == 1


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_result_is_cached_briefly(is_ready: bool) -> None:
    backends, clock = Backends(), Clock()
    backends.is_ready = is_ready
    readiness = Readiness(backends.check, clock)
    assert await readiness.is_ready() is is_ready
    backends.is_ready = not is_ready
    clock.time += CACHE_SECONDS * 0.9
    assert await readiness.is_ready() is is_ready
    clock.time += CACHE_SECONDS * 0.2
    assert await readiness.is_ready() is not is_ready
    assert backends.requests == 2


async def test_readiness_is_checked_no_more_than_twice_a_second() -> None:
    backends, clock = Backends(), Clock()
    readiness = Readiness(backends.check, clock)
    for _ in range(1000):
        await readiness.is_ready()
        clock.time += 0.01
    assert backends.requests <= 20


async def test_a_cancelled_check_is_repeated_by_the_next_caller() -> None:
    backends = Backends()
    backends.gate.clear()
    readiness = Readiness(backends.check, Clock())
    first = asyncio.ensure_future(readiness.is_ready())
    await until(lambda: backends.requests == 1)
    second = asyncio.ensure_future(readiness.is_ready())
    await asyncio.sleep(0)
    first.cancel()
    await until(lambda: backends.requests == 2)
    backends.gate.set()
    assert await second
    assert first.cancelled()


async def test_all_watchers_share_one_timer_and_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[float, Callable[[], None]]] = []
    loop = asyncio.get_running_loop()
    original = loop.call_later

    def call_later(delay: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
        if delay == POLL_SECONDS:
            timers.append((delay, callback))
        return original(delay, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", call_later)
    backends, clock = Backends(), Clock()
    readiness = Readiness(backends.check, clock)
    results: list[bool] = []

    async def watch() -> None:
        await readiness.wait_for_change()
        results.append(await readiness.is_ready())

    watchers = [asyncio.ensure_future(watch()) for _ in range(50)]
    await until(lambda: len(timers) == 1)
    watchers.pop().cancel()
    await asyncio.sleep(0)
    timers[0][1]()
    await asyncio.gather(*watchers)
    assert results == [True] * 49
    assert (backends.requests, len(timers)) == (1, 1)  # without a watcher, no checks run
    second_watch = asyncio.ensure_future(watch())
    await until(lambda: len(timers) == 2)
    readiness.start_draining()
    await second_watch
    assert results[-1] is False


async def test_draining_wakes_waiters_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 3600.0)
    backends = Backends()
    readiness = Readiness(backends.check, Clock())
    assert await readiness.is_ready()
    tasks = [asyncio.ensure_future(readiness.wait_for_change()) for _ in range(3)]
    await asyncio.sleep(0)
    readiness.start_draining()
    readiness.start_draining()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
        await readiness.wait_for_change()
    assert readiness.is_draining
    assert not await readiness.is_ready()
    assert backends.requests == 1


async def test_a_check_that_ends_after_draining_began_is_negative() -> None:
    backends = Backends()
    backends.gate.clear()
    readiness = Readiness(backends.check, Clock())
    pending = [asyncio.ensure_future(readiness.is_ready()) for _ in range(2)]
    await until(lambda: backends.requests == 1)
    readiness.start_draining()
    backends.gate.set()
    assert await asyncio.gather(*pending) == [False, False]
    assert backends.requests == 1
