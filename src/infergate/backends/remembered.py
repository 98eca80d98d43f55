"""A value fetched on demand, cached for a while, and fetched by only one caller at a time.

*Strategy.* There is no background task: one of the callers that need the value fetches it, the
others wait for its result.

*Rule 1.* No caller waits past its own deadline.
*Rule 2.* All waiting callers share the result, value or error. If the fetching caller is cancelled
or reaches its own deadline, there is no result and the next waiter fetches.
*Rule 3.* Errors are not cached: only the callers that were already waiting receive them.
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
"""Lifetime in seconds of a value that may be outdated, and the minimum interval between fetches,
however many requests clients send."""


@dataclass(slots=True)
class _Question:
    """One fetch, shared by the callers that wait for it; if the fetching caller gives up, another
    continues it."""

    error: GatewayError | None = None


class Remembered(Generic[T]):
    """Caches one value. ``fetch`` returns it with its lifetime in seconds; it gets its own copy of
    the call, whose deadline it may shorten."""

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
        """Whether no fetch has succeeded yet."""
        return self._answer is None

    @property
    def known(self) -> T | None:
        """The cached value, or None if there is none or it has expired."""
        return self._answer if self._clock() < self._until else None

    async def get(self, call: Call, *, newer: bool = False) -> T:
        """Return the value, fetching it if needed. With ``refresh``, it is at most a second old.

        ``call`` must have a deadline. Raises the errors of ``fetch``, and TimeoutError if another
        caller's fetch outlasts the deadline.
        """
        came = self._clock()
        value = self._good(came, newer=newer)
        if value is not None:
            return value
        current = self._question
        assert call.deadline is not None
        async with asyncio.timeout(call.deadline - time.monotonic()):
            await self._asking.acquire()
        try:
            if current.error is not None:
                raise current.error.with_traceback(None)
            value = self._good(came, newer=newer)
            return await self._learn(current, call) if value is None else value
        finally:
            self._asking.release()
            # It refers to the error, whose traceback refers to this frame and its callers: the
            # cycle would keep the request's message until the next garbage collection.
            del current

    def doubt(self) -> None:
        """Let the value expire a second after it was fetched, because it may be wrong."""
        self._until = min(self._until, self._asked + DOUBTFUL)

    def _good(self, came: float, *, newer: bool) -> T | None:
        if newer and self._asked < came - DOUBTFUL:
            return None
        return self.known

    async def _learn(self, question: _Question, call: Call) -> T:
        own_call = replace(call, returned={})
        started = self._clock()
        try:
            value, lifetime = await self._ask(own_call)
        except GatewayError as error:
            if not (error.kind is Kind.TIMEOUT and own_call.deadline == call.deadline):
                question.error = error
                self._question = _Question()
            del question  # see get
            raise
        self._answer, self._asked, self._until = value, started, self._clock() + lifetime
        return value
