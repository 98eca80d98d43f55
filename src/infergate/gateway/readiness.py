"""Whether the gateway can serve: asked by many, found out by one at a time.

*Strategy.* Each probe (``/readyz``, health Check, each watcher) would cost every backend a
question. So one is asked at a time, by whoever comes first, and its answer is remembered for a
moment: a storm of probes costs two questions a second. There is no task of its own: who asks is a
caller, and where that one goes away, the next asks.

*Rule.* While draining nothing is asked: it is not ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from infergate.core.call import Call

MEMORY: Final = 0.5
"""Seconds an answer is good for."""
EVERY: Final = 5.0
"""Seconds between two looks for watchers (the interval of active health checks elsewhere)."""


class Readiness:
    """``ask`` asks the backends; ``clock`` tells seconds."""

    def __init__(
        self, ask: Callable[[Call], Awaitable[bool]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock: Final = clock
        self._asking: Final = asyncio.Lock()
        self._answer = False
        self._until = clock()
        self._turn: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.draining = False
        """Not to be ready again."""
        self.watchers: Final[set[asyncio.Task[Any] | None]] = set()
        """Calls that ask this, for hours, and no backend: no configuration has to stay for them."""

    async def ready(self) -> bool:
        """Whether the gateway can serve, at most ``MEMORY`` seconds ago."""
        if self.draining or self._clock() < self._until:
            return self._told()
        async with self._asking:
            # Whoever held the lock before may have learned it meanwhile.
            if not self.draining and self._clock() >= self._until:
                ask = self._ask
                answer = await ask(Call(peer="", started=self._clock()))
                if ask is self._ask:
                    self._answer, self._until = answer, self._clock() + MEMORY
        return self._told()

    def _told(self) -> bool:
        return self._answer and not self.draining

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the call of this task is one of the ``watchers``."""
        task = asyncio.current_task()
        self.watchers.add(task)
        try:
            yield
        finally:
            self.watchers.discard(task)

    async def changed(self) -> None:
        """Wait until ``ready`` may tell another thing: ``EVERY`` seconds, for all who wait
        together, or less when draining begins."""
        if self.draining:
            return
        if self._turn is None:
            self._turn = asyncio.Event()
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._wake)
        await self._turn.wait()

    def turn_to(self, ask: Callable[[Call], Awaitable[bool]]) -> None:
        """Other backends serve from now on, who are asked by ``ask``; all who wait are woken."""
        self._ask = ask
        self._until = self._clock()
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def drain(self) -> None:
        """From now on not ready; all who wait are woken."""
        self.draining = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _wake(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set()
