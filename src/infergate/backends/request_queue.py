"""The queue of a backend that limits concurrent inferences."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from infergate.core.client_key import client_key
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.fair_queue import QueuedJob
from infergate.core.priorities import PRIORITY_HEADER, parse_priority
from infergate.core.request_context import RequestContext
from infergate.core.stats import ConcurrencyStats
from infergate.routing.concurrency import ConcurrencyLimit

_Waiter = asyncio.Future[None]


class RequestQueue:
    """Admits up to ``max_active`` requests at a time, while up to ``max_waiting`` requests wait.
    Callers must call ``leave`` after every successful ``enter`` or ``try_enter``."""

    def __init__(
        self,
        backend: str,
        max_active: int,
        max_waiting: int,
        counters: BackendCounters,
        priority_header: str = PRIORITY_HEADER,
    ) -> None:
        """``priority_header`` is the lower-case name of the header with a request's priority."""
        self._backend: Final = backend
        self._limit: Final = ConcurrencyLimit[_Waiter](max_active, max_waiting)
        self._counters: Final = counters
        self._priority_header: Final = priority_header
        self.try_enter: Final[Callable[[], bool]] = self._limit.try_acquire
        """Takes a slot without waiting, and returns whether a slot was free."""

    @property
    def stats(self) -> ConcurrencyStats:
        """The limit and its current use."""
        return ConcurrencyStats(self._backend, self._limit.active, self._limit.max_active)

    async def enter(self, context: RequestContext) -> None:
        """Take a slot. If no slot is free, wait at most until the deadline of ``context``. Raises
        OVERLOADED if the queue is full or another request displaces this request, and TIMEOUT at
        the deadline."""
        if not self.try_enter():
            await self._wait(context)

    async def _wait(self, context: RequestContext) -> None:
        assert context.deadline is not None
        counters = self._counters
        request = self._make_job(context)
        waiter, priority = request.item, request.priority
        for shed in self._limit.enqueue(request):
            error = self._shed_error(shed)
            if shed is request:
                raise error
            if not shed.item.done():  # done: the request has just been cancelled
                shed.item.set_exception(error)
        counters.queued += 1
        counters.queued_by_priority[priority] += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(context.deadline - began):
                await waiter
        except TimeoutError:
            self._cancel(request)
            counters.queue_expired += 1
            raise GatewayError(
                Kind.TIMEOUT,
                f"backend '{self._backend}': the deadline passed while the request waited in the "
                "queue",
            ) from None
        except asyncio.CancelledError:
            self._cancel(request)
            raise
        else:
            counters.queue_wait.observe(time.monotonic() - began)
        finally:
            counters.queued -= 1
            counters.queued_by_priority[priority] -= 1

    def _make_job(self, context: RequestContext) -> QueuedJob[_Waiter]:
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        priority = (
            parse_priority(context.headers.get(self._priority_header, ""))
            or context.priority
            or context.policy.priority
        )
        weight, permit = 1.0, context.permit
        if permit is not None:
            weight, priority = permit.weight, max(priority, permit.highest_priority)
        deadline = context.deadline
        assert deadline is not None
        return QueuedJob(waiter, *client_key(context), 1, weight, priority, deadline)

    def _shed_error(self, request: QueuedJob[_Waiter]) -> GatewayError:
        limit = self._limit
        self._counters.queue_rejected += 1
        self._counters.shed_by_priority[request.priority] += 1
        return GatewayError(
            Kind.OVERLOADED,
            f"backend '{self._backend}' is at its limit of {limit.max_active} concurrent "
            f"requests, and its queue of {limit.max_waiting} is full",
            retry_after=limit.wait_seconds(request, time.monotonic()),
        )

    def _cancel(self, request: QueuedJob[_Waiter]) -> None:
        waiter = request.item
        if not waiter.done() or waiter.cancelled():
            self._limit.remove(request)
        elif waiter.exception() is None:  # the slot was assigned at the same moment
            self.leave()

    def leave(self) -> None:
        """Release a slot, which passes to the next waiting request."""
        while (waiter := self._limit.release(time.monotonic())) is not None:
            if not waiter.done():  # done: the request has just been cancelled
                waiter.set_result(None)
                return
