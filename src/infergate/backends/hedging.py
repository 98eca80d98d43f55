"""Two tries of one request, of which the first good answer is taken.

*Rule.* No task outlives its request: both are over, or were cancelled and waited for, before there
is an answer. So they may be started here, where no others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Outcome(NamedTuple):
    """``answer`` is the second try's if that ``won``, which is None where there was none."""

    answer: Any
    won: bool | None


async def hedged(
    first: Coroutine[Any, Any, T],
    second: Callable[[], Coroutine[Any, Any, T] | None],
    delay: float,
    good: Callable[[T], bool],
) -> Outcome:
    """What ``first`` answers or, where it takes longer than ``delay`` seconds and ``second`` makes
    another, which of them first gives a ``good`` answer. Where none does: what ``first`` gave or
    raised."""
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(first)]
    try:
        await asyncio.wait(tasks, timeout=delay)
        other = None if tasks[0].done() else second()
        if other is None:
            return Outcome(await tasks[0], None)
        tasks.append(asyncio.ensure_future(other))
        taken = await _first_good(tasks, good)
        return Outcome(await tasks[taken or 0], won=taken == 1)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # An error knows the frames that it goes through, and this one would know the error.
        tasks.clear()
        del each


async def _first_good(tasks: list[asyncio.Future[T]], good: Callable[[T], bool]) -> int | None:
    """Which of ``tasks`` first has a good result; None where none has."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task in done and task.exception() is None and good(task.result()):
                return number
    return None
