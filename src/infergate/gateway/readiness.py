"""Reports whether the gateway is ready to serve requests.

Probes (``/readyz``, gRPC ``Check`` and ``Watch``) share the results of checks. The first caller
checks the backends while later callers wait for the same result. The result is reused for half a
second, so any number of probes causes at most two checks per second. There is no background task.
If the caller that checks the backends is cancelled, the next waiting caller checks them.

A gateway that drains is not ready and checks no backends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from infergate.core.request_context import RequestContext

CACHE_SECONDS: Final = 0.5
"""Seconds for which a result is reused."""
POLL_SECONDS: Final = 5.0
"""Seconds between two checks for watchers."""


class Readiness:
    """Caches the result of ``check_backends``. ``clock`` returns seconds."""

    def __init__(
        self,
        check_backends: Callable[[RequestContext], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check_backends = check_backends
        self._clock: Final = clock
        self._check_lock: Final = asyncio.Lock()
        self._result = False
        self._valid_until = clock()
        self._change_event: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        """Whether draining has started. Draining never ends."""
        self.watchers: Final[set[asyncio.Task[Any] | None]] = set()
        """Tasks of health watches, which may last for hours. They always check the backends of the
        current configuration, so a reload does not keep the old configuration for them."""

    async def is_ready(self) -> bool:
        """Return whether the gateway is ready. The result is at most ``CACHE_SECONDS`` old."""
        if self.is_draining or self._clock() < self._valid_until:
            return self._current()
        async with self._check_lock:
            # The previous holder of the lock may have refreshed the result.
            if not self.is_draining and self._clock() >= self._valid_until:
                check = self._check_backends
                result = await check(RequestContext(""))
                if check is self._check_backends:
                    self._result, self._valid_until = result, self._clock() + CACHE_SECONDS
        return self._current()

    def _current(self) -> bool:
        return self._result and not self.is_draining

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Add the current task to ``watchers`` within the block."""
        task = asyncio.current_task()
        self.watchers.add(task)
        try:
            yield
        finally:
            self.watchers.discard(task)

    async def wait_for_change(self) -> None:
        """Wait until ``is_ready`` may have a new result. All waiters are woken every
        ``POLL_SECONDS``, on a reload, and when draining starts."""
        if self.is_draining:
            return
        if self._change_event is None:
            self._change_event = asyncio.Event()
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._wake)
        await self._change_event.wait()

    def replace_check(self, check_backends: Callable[[RequestContext], Awaitable[bool]]) -> None:
        """Use ``check_backends`` of a new configuration from now on, and wake all waiters."""
        self._check_backends = check_backends
        self._valid_until = self._clock()
        self._wake()

    def start_draining(self) -> None:
        """Report from now on that the gateway is not ready, and wake all waiters."""
        self.is_draining = True
        self._wake()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        event, self._change_event = self._change_event, None
        if event is not None:
            event.set()
