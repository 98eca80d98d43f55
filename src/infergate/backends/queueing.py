"""The queue of a backend that limits concurrent inferences."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.figures import PlaceFigures
from infergate.core.tally import Tally
from infergate.routing.places import Places

_RETRY_AFTER: Final = 1.0
"""Seconds."""


class Queue:
    """Admits up to ``max_active`` requests at a time; up to ``max_waiting`` more wait. Every
    successful ``enter`` must be matched by a ``leave``."""

    def __init__(self, backend: str, most: int, most_waiting: int, tally: Tally) -> None:
        self._backend: Final = backend
        self._places: Final[Places[asyncio.Future[None]]] = Places(most, most_waiting)
        self._tally: Final = tally

    @property
    def figures(self) -> PlaceFigures:
        """The limit and its current use."""
        return PlaceFigures(self._backend, self._places.taken, self._places.most)

    def enter_now(self) -> bool:
        """Take a slot if one is free, without waiting; return whether it was taken."""
        return self._places.take()

    async def enter(self, call: Call) -> None:
        """Take a slot, waiting until the deadline of ``call``. Raises OVERLOADED if the queue is
        full, TIMEOUT at the deadline."""
        if not self._places.take():
            await self._wait(call)

    async def _wait(self, call: Call) -> None:
        assert call.deadline is not None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._places.wait(waiter, call.deadline):
            self._tally.refused += 1
            raise GatewayError(
                Kind.OVERLOADED,
                f"backend '{self._backend}' is at its limit of {self._places.most} concurrent "
                f"requests, and its queue of {self._places.most_waiting} is full",
                retry_after=_RETRY_AFTER,
            )
        self._tally.waiting += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(call.deadline - began):
                await waiter
        except TimeoutError:
            self._give_up(waiter)
            self._tally.expired += 1
            raise GatewayError(
                Kind.TIMEOUT,
                f"backend '{self._backend}': the deadline passed while waiting in the queue",
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        else:
            self._tally.waited.add(time.monotonic() - began)
        finally:
            self._tally.waiting -= 1

    def _give_up(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():  # the slot was assigned at the same moment
            self.leave()
        else:
            self._places.give_up(waiter)

    def leave(self) -> None:
        """Release a slot, which passes to the next waiting request."""
        while (waiter := self._places.leave(time.monotonic())) is not None:
            if not waiter.done():  # done: the request was just cancelled
                waiter.set_result(None)
                return
