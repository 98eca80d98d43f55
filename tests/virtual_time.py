"""Virtual time for asynchronous tests without sockets, threads and processes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest


@pytest.fixture
async def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock while any task can run, and then move it to the next timer.

    The order in which timers expire therefore never depends on the speed of the machine, and no
    test waits. Only timers may wake the event loop: while a timer is pending, the test does not
    wait for sockets or threads.
    """
    loop: Any = asyncio.get_running_loop()
    now = time.monotonic()
    select = loop._selector.select

    def advance(timeout: float | None = None) -> Any:
        nonlocal now
        if timeout is None:
            return select(None)
        events = select(0)
        if not events:
            now += timeout
        return events

    def clock() -> float:
        return now

    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop._selector, "select", advance)
    monkeypatch.setattr(time, "monotonic", clock)
