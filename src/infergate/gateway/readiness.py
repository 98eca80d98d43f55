"""Whether the gateway can serve.

Each probe (``/readyz``, health Check, each watcher) would otherwise send a request to every
backend. Instead the first caller checks the backends while later ones wait for the same result,
which is reused for half a second: any number of probes costs at most two checks a second. No
background task is needed; if the checking caller is cancelled, the next waiter checks.

A draining gateway is not ready, and checks no backend.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from infergate.core.call import Call

MEMORY: Final = 0.5
"""Seconds for which a result is reused."""
EVERY: Final = 5.0
"""Seconds between two checks for watchers, like the interval of active health checks elsewhere."""


class Readiness:
    """The cached result of ``check_backends``. ``clock`` returns seconds."""

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
        """Set when draining starts, and never reset."""
        self.watchers: Final[set[asyncio.Task[Any] | None]] = set()
        """Tasks of health watches. They may last for hours and use no backend, so an old
        configuration need not be kept for them."""

    async def ready(self) -> bool:
        """Return whether the gateway could serve at most ``CACHE_SECONDS`` ago."""
        if self.draining or self._clock() < self._until:
            return self._told()
        async with self._asking:
            # The previous holder of the lock may have refreshed the result.
            if not self.draining and self._clock() >= self._until:
                check = self._ask
                result = await check(Call(peer="", started=self._clock()))
                if check is self._ask:
                    self._answer, self._until = result, self._clock() + MEMORY
        return self._told()

    def _told(self) -> bool:
        return self._answer and not self.draining

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Add the current task to ``watchers`` within the block."""
        task = asyncio.current_task()
        self.watchers.add(task)
        try:
            yield
        finally:
            self.watchers.discard(task)

    async def changed(self) -> None:
        """Wait until ``is_ready`` may have a new result: for ``POLL_SECONDS``, shared by all
        waiters, or until draining starts."""
        if self.draining:
            return
        if self._turn is None:
            self._turn = asyncio.Event()
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._wake)
        await self._turn.wait()

    def turn_to(self, ask: Callable[[Call], Awaitable[bool]]) -> None:
        """Use ``check_backends`` of a new configuration from now on, and wake all waiters."""
        self._ask = ask
        self._until = self._clock()
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def drain(self) -> None:
        """Report not ready from now on, and wake all waiters."""
        self.draining = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _wake(self) -> None:
        event, self._turn = self._turn, None
        if event is not None:
            event.set()
