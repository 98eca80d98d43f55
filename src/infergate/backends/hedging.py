"""Hedging: two concurrent attempts of one request. The first successful response is used.

*Rule.* No task outlives its request: ``run_hedged`` ends both attempts before it returns. Only this
module starts a task per attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class HedgeResult(NamedTuple):
    """The response, and whether it came from the hedge. ``hedge_won`` is None if no hedge was
    sent."""

    response: Any
    hedge_won: bool | None


async def run_hedged(
    first: Coroutine[Any, Any, T],
    start_hedge: Callable[[], Coroutine[Any, Any, T] | None],
    delay: float,
    is_success: Callable[[T], bool],
) -> HedgeResult:
    """Return the response of ``first``. If the response takes longer than ``delay`` seconds and
    ``start_hedge`` supplies a second attempt, return the first response that ``is_success``
    accepts. If neither attempt succeeds, return the response of ``first`` or raise its error."""
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(first)]
    try:
        await asyncio.wait(tasks, timeout=delay)
        hedge = None if tasks[0].done() else start_hedge()
        if hedge is None:
            return HedgeResult(await tasks[0], None)
        tasks.append(asyncio.ensure_future(hedge))
        winner = await _first_success(tasks, is_success)
        return HedgeResult(await tasks[winner or 0], hedge_won=winner == 1)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The traceback of an error refers to this frame, so the frame must not refer to the tasks,
        # which hold the error.
        tasks.clear()
        del task


async def _first_success(
    tasks: list[asyncio.Future[T]], is_success: Callable[[T], bool]
) -> int | None:
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for index, task in enumerate(tasks):
            if task in done and task.exception() is None and is_success(task.result()):
                return index
    return None
