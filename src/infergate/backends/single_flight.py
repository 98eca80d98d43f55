"""A cache of one value, which callers fetch on demand.

There is no background task: one of the callers that need the value fetches it, and the other
callers wait for the result.

*Rule 1.* No caller waits past its own deadline.
*Rule 2.* All waiting callers share the result, which is a value or an error. If the fetching caller
is cancelled or reaches its own deadline, there is no result, and the next waiter fetches the value.
*Rule 3.* Errors are not cached: only the callers that were already waiting receive them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext

T = TypeVar("T")

STALE_SECONDS: Final = 1.0
"""Seconds for which a possibly outdated value is used. ``refresh`` and ``mark_stale`` therefore
cause at most one successful fetch in this time, however many requests clients send."""


@dataclass(slots=True)
class _Fetch:
    """A fetch that callers share. If the caller that runs the fetch is cancelled, another caller
    runs it."""

    error: GatewayError | None = None


class SingleFlightCache(Generic[T]):
    """Caches one value. ``fetch`` returns the value and the value's lifetime in seconds. ``fetch``
    gets a child of the caller's context and may shorten the child's deadline."""

    def __init__(
        self,
        fetch: Callable[[RequestContext], Awaitable[tuple[T, float]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch: Final = fetch
        self._clock: Final = clock
        self._lock: Final = asyncio.Lock()
        self._current = _Fetch()
        self._value: T | None = None
        self._fetched_at = 0.0
        self._valid_until = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no fetch has succeeded yet."""
        return self._value is None

    @property
    def cached(self) -> T | None:
        """The cached value, or None if no value was fetched or the value has expired."""
        return self._value if self._clock() < self._valid_until else None

    async def get(self, context: RequestContext, *, refresh: bool = False) -> T:
        """Return the value, and fetch it if needed. With ``refresh``, the value is at most a second
        old.

        ``context`` must have a deadline. Raises the errors of ``fetch``, and TimeoutError if
        another caller's fetch outlasts the deadline.
        """
        arrived_at = self._clock()
        value = self._valid_value(arrived_at, refresh=refresh)
        if value is not None:
            return value
        current = self._current
        assert context.deadline is not None
        async with asyncio.timeout(context.deadline - time.monotonic()):
            await self._lock.acquire()
        try:
            if current.error is not None:
                raise current.error.with_traceback(None)
            value = self._valid_value(arrived_at, refresh=refresh)
            return await self._fetch_value(current, context) if value is None else value
        finally:
            self._lock.release()
            # The fetch refers to the error, whose traceback refers to this frame and its callers.
            # This reference cycle would keep the request's message until the next garbage
            # collection.
            del current

    def mark_stale(self) -> None:
        """Let the value, which may be wrong, expire a second after it was fetched."""
        self._valid_until = min(self._valid_until, self._fetched_at + STALE_SECONDS)

    def _valid_value(self, arrived_at: float, *, refresh: bool) -> T | None:
        if refresh and self._fetched_at < arrived_at - STALE_SECONDS:
            return None
        return self.cached

    async def _fetch_value(self, current: _Fetch, context: RequestContext) -> T:
        own_context = context.child()
        started = self._clock()
        try:
            value, lifetime = await self._fetch(own_context)
        except GatewayError as error:
            if not (error.kind is Kind.TIMEOUT and own_context.deadline == context.deadline):
                current.error = error
                self._current = _Fetch()
            del current  # breaks a reference cycle, as in ``get``
            raise
        self._value, self._fetched_at, self._valid_until = value, started, self._clock() + lifetime
        return value
