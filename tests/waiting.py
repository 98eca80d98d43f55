"""Waits for conditions that no event reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], description: str = "") -> None:
    """Poll ``condition`` until it returns true: first in every iteration of the event loop, then
    with growing pauses, so that processes and threads get the CPU."""
    pause = 0.0
    try:
        async with asyncio.timeout(60):
            while not condition():
                for _ in range(50):
                    await asyncio.sleep(pause)
                    if condition():
                        return
                pause = min(pause * 2, 0.02) or 0.001
    except TimeoutError:
        raise AssertionError(f"not within 60 s: {description}") from None
