"""Copies of requests to a second backend, whose responses are discarded.

- A copy is sent after the response to the original request, so the client never waits for it.
- The number of concurrent copies is limited. Together they hold at most ``MAX_BYTES`` of tensors,
  but a single copy may exceed ``MAX_BYTES``. Copies and their responses also count for
  ``limits.in_flight_bytes``, even after their clients have disconnected. A copy beyond a limit is
  dropped and counted as ``dropped``.
- ``MirrorSender`` keeps all tasks. They are finished when ``close`` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Final

from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError
from infergate.core.limits import MIB
from infergate.core.log_events import BUG
from infergate.core.memory import DetachedMemoryAccount, MemoryAccount
from infergate.core.messages import InferRequest

MAX_BYTES: Final = 256 * MIB
_log = logging.getLogger(__name__)


class MirrorSender:
    """Sends at most ``max_concurrent`` copies at once."""

    def __init__(self, max_concurrent: int, counters: RouteCounters) -> None:
        self._max_concurrent: Final = max_concurrent
        self._counters: Final = counters
        self._tasks: Final[dict[asyncio.Task[None], int]] = {}
        """The tasks of the running copies, with the bytes of tensors that each copy holds."""

    def admit(self, request: InferRequest, memory: MemoryAccount) -> DetachedMemoryAccount | None:
        """Reserve memory for one more copy of ``request`` and return the copy's account. If a limit
        is reached, count the copy as dropped and return None. ``memory`` is the account of the
        original request."""
        sizes, size = self._tasks.values(), _tensor_bytes(request)
        if len(sizes) < self._max_concurrent and (not sizes or sum(sizes) + size <= MAX_BYTES):
            with contextlib.suppress(GatewayError):
                memory.grow(size)
                return memory.detach(size)
        self._counters.mirrored["dropped"] += 1
        return None

    def send(
        self, request: InferRequest, exchange: Awaitable[object], memory: DetachedMemoryAccount
    ) -> None:
        """Await ``exchange``, which sends the copy of ``request``, in a new task."""
        task = asyncio.get_running_loop().create_task(self._run(exchange))
        self._tasks[task] = _tensor_bytes(request)
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: memory.close())

    async def _run(self, exchange: Awaitable[object]) -> None:
        try:
            await exchange
        except GatewayError:
            self._counters.mirrored["failed"] += 1
        except Exception:  # noqa: BLE001 - logged; fails one copy only
            self._counters.mirrored["failed"] += 1
            _log.exception("internal error while mirroring a request", extra=BUG)
        else:
            self._counters.mirrored["ok"] += 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _tensor_bytes(request: InferRequest) -> int:
    return sum(len(tensor.data) for tensor in request.inputs)
