"""Sends copies of requests to a mirror, a second backend whose responses are compared or discarded.

- A copy is sent after the response to the original request has arrived, so the client never waits
  for the copy.
- The number of concurrent copies is limited. The tensors of all copies take at most ``MAX_BYTES``,
  but a copy may exceed ``MAX_BYTES`` if no other copy is in progress. Copies and their responses
  also count toward ``limits.in_flight_bytes`` as optional work, even after their clients have
  disconnected. A copy beyond a limit is dropped and counted as ``dropped``.
- Copies of one sequence are sent one after the other. If a copy is dropped, all later copies of the
  sequence are dropped until the sequence starts again, because the mirror's state would differ from
  the state of the original backend.
- ``MirrorSender`` keeps all tasks. When ``close`` returns, all tasks are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from infergate.core.bounded_cache import BoundedCache
from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError
from infergate.core.limits import MIB
from infergate.core.log_events import BUG
from infergate.core.memory import DetachedMemoryAccount, MemoryAccount
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey, sequence_key

MAX_BYTES: Final = 256 * MIB
_MAX_INCOMPLETE: Final = 4096
_SEQUENCE_START: Final = "sequence_start"
_log = logging.getLogger(__name__)


class MirrorSender:
    """Sends at most ``max_concurrent`` copies at the same time."""

    def __init__(self, max_concurrent: int, counters: RouteCounters) -> None:
        self._max_concurrent: Final = max_concurrent
        self._counters: Final = counters
        self._tasks: Final[dict[asyncio.Task[None], int]] = {}
        """The tasks of the running copies, each with the bytes of the copy's tensors."""
        self._latest: Final[dict[SequenceKey | None, asyncio.Task[None]]] = {}
        """The latest task of each sequence."""
        self._incomplete: Final = BoundedCache[SequenceKey | None, None](_MAX_INCOMPLETE)
        """Sequences with a dropped copy."""

    def admit(
        self, request: InferRequest, size: int, memory: MemoryAccount
    ) -> DetachedMemoryAccount | None:
        """Reserve memory for a copy of ``request`` with ``size`` bytes of tensors, and return the
        copy's account. If a limit is reached, or an earlier copy of the sequence was dropped, count
        the copy as dropped and return None. ``memory`` is the account of the original request."""
        sizes, sequence = self._tasks.values(), sequence_key(request)
        if request.parameters.get(_SEQUENCE_START):
            self._incomplete.pop(sequence, None)
        if (
            sequence not in self._incomplete
            and len(sizes) < self._max_concurrent
            and (not sizes or sum(sizes) + size <= MAX_BYTES)
        ):
            with contextlib.suppress(GatewayError):
                return memory.detach_optional(size)
        self._counters.mirrored["dropped"] += 1
        if sequence is not None:
            self._incomplete[sequence] = None
        return None

    def send(
        self,
        request: InferRequest,
        size: int,
        exchange: Callable[[], Awaitable[object]],
        memory: DetachedMemoryAccount,
    ) -> None:
        """Run ``exchange``, which sends the admitted copy of ``request``, in a new task. ``size``
        is the size of the copy's tensors in bytes, and ``memory`` is the copy's account."""
        sequence = sequence_key(request)
        previous = self._latest.get(sequence)
        task = asyncio.get_running_loop().create_task(self._run(exchange, previous))
        self._tasks[task] = size
        if sequence is not None:
            self._latest[sequence] = task

        def finish(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if self._latest.get(sequence) is task:
                del self._latest[sequence]
            memory.close()

        task.add_done_callback(finish)

    async def _run(
        self, exchange: Callable[[], Awaitable[object]], previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:
            await asyncio.wait({previous})
            del previous  # a reference would keep all earlier tasks alive
        try:
            await exchange()
        except GatewayError:
            self._counters.mirrored["failed"] += 1
        except Exception:  # noqa: BLE001 - a bug must fail only one copy
            self._counters.mirrored["failed"] += 1
            _log.exception("internal error while mirroring a request", extra=BUG)
        else:
            self._counters.mirrored["ok"] += 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def copy_context(context: RequestContext, memory: DetachedMemoryAccount) -> RequestContext:
    """Return the context of a copy of a request. The copy has its own account ``memory``, and no
    deadline until ``RouteBinding.apply_to`` sets the mirror's timeout."""
    child = context.child()
    child.deadline = child.stream_deadline = None
    child.memory = memory
    return child
