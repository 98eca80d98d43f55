"""Requests that are sent to another backend as well, whose answers nobody gets.

*Rule 1.* Whoever asked does not wait: a copy is sent when its own answer is there.
*Rule 2.* There are so many copies at once and no more, nor do they hold more than ``MOST_BYTES``
of tensors, nor more memory than ``limits.in_flight_bytes`` allows, which counts them and their
answers though their clients may be gone: a further copy is dropped, and counted as dropped. As far
as ``MOST_BYTES`` goes one copy may always be under way.
*Rule 3.* All tasks are held here, and over when ``close`` is. So they may be started here.
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
    """At most ``most`` copies at once."""

    def __init__(self, most: int, tally: RouteTally) -> None:
        self._most: Final = most
        self._tally: Final = tally
        self._tasks: Final[dict[asyncio.Task[None], int]] = {}
        """And the bytes of each."""

    def admit(self, request: InferRequest, memory: MemoryShare) -> DetachedMemory | None:
        """The account of one more copy, of a request whose own is ``memory``; None where there may
        be none now: it is counted as dropped."""
        held, size = self._tasks.values(), _size(request)
        if len(held) < self._most and (not held or sum(held) + size <= MOST_BYTES):
            with contextlib.suppress(GatewayError):
                memory.grow(size)
                return memory.detach(size)
        self._tally.mirrored["dropped"] += 1
        return None

    def send(
        self, request: InferRequest, asking: Awaitable[object], memory: DetachedMemory
    ) -> None:
        """Let ``asking`` for ``request`` go on by itself."""
        task = asyncio.get_running_loop().create_task(self._sent(asking))
        self._tasks[task] = _size(request)
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: memory.close())

    async def _sent(self, asking: Awaitable[object]) -> None:
        try:
            await asking
        except GatewayError:
            self._tally.mirrored["failed"] += 1
        except Exception:  # noqa: BLE001 - it is logged, and costs one copy
            self._tally.mirrored["failed"] += 1
            _log.exception("a bug while mirroring", extra=BUG)
        else:
            self._tally.mirrored["ok"] += 1

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _size(request: InferRequest) -> int:
    return sum(len(tensor.data) for tensor in request.inputs)
