"""Something a server is asked for once and that is then remembered for a while.

*Strategy.* There is no task of its own: of the calls that want to know one asks, and the others
wait for what it learns.

*Rule 1.* Each waits no longer than its own deadline.
*Rule 2.* All who wait share the outcome, good or bad. Where the one that asks goes away, or its own
deadline ends the question, there is no outcome, and the next one asks.
*Rule 3.* An error is told to those who wait and is not remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind

T = TypeVar("T")

DOUBTFUL: Final = 1.0
"""Seconds that an answer is believed which may not last, or is doubted: a server is asked no more
often, whatever clients send."""


@dataclass(slots=True)
class _Question:
    """What is being found out, by one call or, if that goes away, by several after each other."""

    error: GatewayError | None = None


class Remembered(Generic[T]):
    """What ``ask`` answers: something, and for how many seconds to believe it. ``ask`` is given a
    call of its own, whose deadline it may bring forward."""

    def __init__(
        self,
        ask: Callable[[Call], Awaitable[tuple[T, float]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask: Final = ask
        self._clock: Final = clock
        self._asking: Final = asyncio.Lock()
        self._question = _Question()
        self._answer: T | None = None
        self._asked = 0.0
        self._until = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was learnt yet."""
        return self._answer is None

    @property
    def known(self) -> T | None:
        """What is remembered and still believed."""
        return self._answer if self._clock() < self._until else None

    async def get(self, call: Call, *, newer: bool = False) -> T:
        """What is known, asked for if need be. ``newer``: of the last second.

        ``call`` has a deadline. Raises what ``ask`` raises, TimeoutError where another's question
        outlasts the deadline.
        """
        came = self._clock()
        good = self._good(came, newer=newer)
        if good is not None:
            return good
        question = self._question
        assert call.deadline is not None
        async with asyncio.timeout(call.deadline - time.monotonic()):
            await self._asking.acquire()
        try:
            if question.error is not None:
                raise question.error.with_traceback(None)
            good = self._good(came, newer=newer)
            return await self._learn(question, call) if good is None else good
        finally:
            self._asking.release()
            # It leads to the error, and the error to this frame and to those that await it, with
            # the message: all would stay until cycles are collected.
            del question

    def doubt(self) -> None:
        """What is known may be wrong: ask again, when it is a second old."""
        self._until = min(self._until, self._asked + DOUBTFUL)

    def _good(self, came: float, *, newer: bool) -> T | None:
        if newer and self._asked < came - DOUBTFUL:
            return None
        return self.known

    async def _learn(self, question: _Question, call: Call) -> T:
        own = replace(call, returned={})
        asked = self._clock()
        try:
            answer, lifetime = await self._ask(own)
        except GatewayError as error:
            if not (error.kind is Kind.TIMEOUT and own.deadline == call.deadline):
                question.error = error
                self._question = _Question()
            del question  # see get
            raise
        self._answer, self._asked, self._until = answer, asked, self._clock() + lifetime
        return answer
