"""Waits for conditions that no event reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(met: Callable[[], object]) -> None:
    """Poll ``met`` until it returns true: first in every iteration of the event loop, then every
    millisecond, so that processes and threads get the CPU."""
    pause = 0.0
    async with asyncio.timeout(60):
        while not met():
            for _ in range(50):
                await asyncio.sleep(pause)
                if met():
                    return
            pause = 0.001
