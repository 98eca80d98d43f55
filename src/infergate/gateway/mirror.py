"""Copies of requests to a second backend, whose responses are discarded.

- A copy is sent once the original request is answered, so the client never waits for it.
- The number of concurrent copies is limited. Together they hold at most ``MAX_BYTES`` of tensors
  and no more memory than ``limits.in_flight_bytes`` allows, which counts copies and their responses
  even after their clients are gone. A copy beyond a limit is dropped and counted as ``dropped``;
  one copy may always exceed ``MAX_BYTES``.
- All tasks are kept here and are finished when ``close`` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Final

from infergate.core.errors import GatewayError
from infergate.core.limits import MIB
from infergate.core.memory import DetachedMemory, MemoryShare
from infergate.core.messages import InferRequest
from infergate.core.tally import RouteTally
from infergate.core.vocabulary import BUG

MOST_BYTES: Final = 256 * MIB
_log = logging.getLogger(__name__)


class Mirroring:
    """Sends at most ``max_concurrent`` copies at once."""

    def __init__(self, most: int, tally: RouteTally) -> None:
        self._most: Final = most
        self._tally: Final = tally
        self._tasks: Final[dict[asyncio.Task[None], int]] = {}
        """The running copies and the bytes of tensors that each holds."""

    def admit(self, request: InferRequest, memory: MemoryShare) -> DetachedMemory | None:
        """Reserve memory for one more copy of ``request`` and return its account. Return None, and
        count the copy as dropped, if a limit is reached. ``memory`` is the account of the original
        request."""
        sizes, size = self._tasks.values(), _size(request)
        if len(sizes) < self._most and (not sizes or sum(sizes) + size <= MOST_BYTES):
            with contextlib.suppress(GatewayError):
                memory.grow(size)
                return memory.detach(size)
        self._tally.mirrored["dropped"] += 1
        return None

    def send(
        self, request: InferRequest, asking: Awaitable[object], memory: DetachedMemory
    ) -> None:
        """Await ``exchange``, the copy of ``request``, in a task of its own."""
        task = asyncio.get_running_loop().create_task(self._sent(asking))
        self._tasks[task] = _size(request)
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: memory.close())

    async def _sent(self, asking: Awaitable[object]) -> None:
        try:
            await asking
        except GatewayError:
            self._tally.mirrored["failed"] += 1
        except Exception:  # noqa: BLE001 - logged; costs one copy only
            self._tally.mirrored["failed"] += 1
            _log.exception("internal error while mirroring a request", extra=BUG)
        else:
            self._tally.mirrored["ok"] += 1

    async def close(self) -> None:
        """Cancel the copies in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _size(request: InferRequest) -> int:
    return sum(len(tensor.data) for tensor in request.inputs)
