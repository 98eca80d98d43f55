"""The queue of a backend that limits concurrent inferences."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.stats import ConcurrencyStats
from infergate.routing.concurrency import ConcurrencyLimit

_RETRY_AFTER_SECONDS: Final = 1.0


class RequestQueue:
    """Admits up to ``max_active`` requests at a time, while up to ``max_waiting`` requests wait.
    Callers must call ``leave`` after every successful ``enter``."""

    def __init__(
        self, backend: str, max_active: int, max_waiting: int, counters: BackendCounters
    ) -> None:
        self._backend: Final = backend
        self._limit: Final[ConcurrencyLimit[asyncio.Future[None]]] = ConcurrencyLimit(
            max_active, max_waiting
        )
        self._counters: Final = counters

    @property
    def stats(self) -> ConcurrencyStats:
        """The limit and its current use."""
        return ConcurrencyStats(self._backend, self._limit.active, self._limit.max_active)

    def try_enter(self) -> bool:
        """Take a slot if one is free, without waiting. Return whether a slot was taken."""
        return self._limit.try_acquire()

    async def enter(self, context: RequestContext) -> None:
        """Take a slot, and wait for it until the deadline of ``context``. Raises OVERLOADED if the
        queue is full, and TIMEOUT at the deadline."""
        if not self._limit.try_acquire():
            await self._wait(context)

    async def _wait(self, context: RequestContext) -> None:
        assert context.deadline is not None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._limit.enqueue(waiter, context.deadline):
            self._counters.queue_rejected += 1
            raise GatewayError(
                Kind.OVERLOADED,
                f"backend '{self._backend}' is at its limit of {self._limit.max_active} concurrent "
                f"requests, and its queue of {self._limit.max_waiting} is full",
                retry_after=_RETRY_AFTER_SECONDS,
            )
        self._counters.queued += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(context.deadline - began):
                await waiter
        except TimeoutError:
            self._cancel(waiter)
            self._counters.queue_expired += 1
            raise GatewayError(
                Kind.TIMEOUT,
                f"backend '{self._backend}': the deadline passed while waiting in the queue",
            ) from None
        except asyncio.CancelledError:
            self._cancel(waiter)
            raise
        else:
            self._counters.queue_wait.observe(time.monotonic() - began)
        finally:
            self._counters.queued -= 1

    def _cancel(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():  # the slot was assigned at the same moment
            self.leave()
        else:
            self._limit.remove(waiter)

    def leave(self) -> None:
        """Release a slot, which passes to the next waiting request."""
        while (waiter := self._limit.release(time.monotonic())) is not None:
            if not waiter.done():  # done: the request has just been cancelled
                waiter.set_result(None)
                return
