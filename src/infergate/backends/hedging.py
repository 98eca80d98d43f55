"""Hedging: two concurrent attempts of one request, of which the first successful response is used.

*Rule.* No task outlives its request: before ``run_hedged`` returns, both attempts have ended, if
need be by cancellation. Only this module starts a task per attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Outcome(NamedTuple):
    """The response, and whether the hedge won; ``hedge_won`` is None if no hedge was sent."""

    answer: Any
    won: bool | None


async def hedged(
    first: Coroutine[Any, Any, T],
    second: Callable[[], Coroutine[Any, Any, T] | None],
    delay: float,
    good: Callable[[T], bool],
) -> Outcome:
    """Return the response of ``first``. If it takes longer than ``delay`` seconds and
    ``start_hedge`` supplies a second attempt, return the first response of either that
    ``is_success`` accepts. If neither succeeds, return the response or raise the error of
    ``first``."""
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(first)]
    try:
        await asyncio.wait(tasks, timeout=delay)
        hedge = None if tasks[0].done() else second()
        if hedge is None:
            return Outcome(await tasks[0], None)
        tasks.append(asyncio.ensure_future(hedge))
        winner = await _first_good(tasks, good)
        return Outcome(await tasks[winner or 0], won=winner == 1)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # An error refers to this frame through its traceback; the frame must not refer back.
        tasks.clear()
        del task


async def _first_good(tasks: list[asyncio.Future[T]], good: Callable[[T], bool]) -> int | None:
    """Return the index of the first task with a successful result, or None."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for index, task in enumerate(tasks):
            if task in done and task.exception() is None and good(task.result()):
                return index
    return None
