from __future__ import annotations

import asyncio
import time

from infergate.runtime.event_loop_lag import EventLoopLagMonitor


async def test_a_blocked_event_loop_is_reported() -> None:
    delays: list[float] = []
    monitor = EventLoopLagMonitor(delays.append)
    monitor.start()
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251 - blocks the loop
    async with asyncio.timeout(20):
        while not any(delay >= 0.3 for delay in delays):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert max(delays) < 20
    monitor.stop()
    delays.clear()
    time.sleep(0.6)  # noqa: ASYNC251
    await asyncio.sleep(0.05)
    assert not delays


def test_a_monitor_that_was_not_started_can_be_stopped() -> None:
    EventLoopLagMonitor(lambda _: None).stop()
