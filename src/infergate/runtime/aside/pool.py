"""The pool of helper processes and the assignment of jobs to them.

*Strategy.* Each slot of the pool starts its process on first use, and again if it has died. A
process runs one job at a time; further jobs wait in a bounded queue that is fair between clients
(``fairness``). Responses arrive through pipe callbacks, so no task waits for them. A process that
is starting continues to start if its first caller gives up.
*Rule 1.* No job runs twice: if a process dies, its job fails.
*Rule 2.* Shared memory that a process reads or writes stays allocated until the process has
responded, even if the caller is gone.
*Rule 3.* A cancelled job leaves the queue at once. A running one may finish, because a new process
costs more than most jobs; after a grace period it is killed.
*Rule 4.* Large jobs leave one process free for others, if there are several.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB
from infergate.core.memory import UNLIMITED, DetachedMemory, MemoryShare
from infergate.core.tally import Tally
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.runtime.aside.fairness import MAX_COST, MAX_WAITING, FairQueue
from infergate.runtime.aside.parcel import HEAD, pack, unpack
from infergate.runtime.aside.shared import Shared, shared

T = TypeVar("T")
_LEAST: Final = 1 * MIB
_TIMES: Final = 4
"""The capacity for a response, as a multiple of its input: a number of 8 bytes takes up to 25 as
text, and a number written in 2 bytes of text takes 8. Only the used part takes memory; whatever
does not fit is pickled."""
_LONGEST: Final = 300.0
"""Seconds that a job may take: a hundred times what the worst document of the default size takes. A
process that takes longer is stuck and would block its slot."""
_ABANDONED: Final = 2.0
"""Seconds that a job may continue after its caller is gone: several times the cost of a new
process."""
_SLICE: Final = 4 * MIB
"""Bytes copied at a time, which block the event loop for 4 ms."""
LARGE: Final = 4 * MIB
"""Jobs of a higher cost never take the last free process."""
PATIENCE: Final = 30.0
"""Seconds to wait and work if the caller has set no deadline: the default timeout of backends,
which starts when a request is sent."""
_RETRY_AFTER: Final = 1.0
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from infergate.runtime.aside.process import main; main(int(sys.argv[1]))"
)
"""The helper uses this process's module path: ``-m`` would search the working directory first and
ignore entries added at run time."""
_log = logging.getLogger(__name__)


class Pool:
    """A pool of up to ``max_processes`` (at least 1); implements
    :class:`infergate.core.offload.Offload`. ``counters`` receives queue statistics."""

    def __init__(self, most: int, tally: Tally | None = None) -> None:
        job_memory = _Room()
        self._places: Final = [_Place(self._freed, job_memory) for _ in range(most)]
        self._free: Final = list(self._places)
        self._queue: Final = FairQueue[asyncio.Future[_Place]](MAX_WAITING, MAX_COST)
        self._tally: Final = tally or Tally()

    async def run(  # noqa: PLR0913 - the signature of Offload
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str] = ("", ""),
        cost: int = 0,
        memory: MemoryShare = UNLIMITED,
        size: int = 0,
    ) -> T:
        """Return ``function(*arguments)``, run by a helper process; all of it is pickled.
        ``client`` (identity or address, and connection) identifies the caller to the fair queue;
        ``cost`` estimates the bytes that the job processes. While the job runs, ``size`` bytes are
        charged to ``memory``, even if the caller is gone.

        Raises the function's own GatewayError (any other error becomes a RuntimeError), TIMEOUT at
        ``deadline`` (on the clock of ``time.monotonic`` and the event loop; None: after
        ``DEFAULT_TIMEOUT_SECONDS``), INTERNAL if the process died, and OVERLOADED if the queue is
        full or the system lacks memory.
        """
        slot: _Place | None = None
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + PATIENCE
        try:
            async with asyncio.timeout_at(deadline):
                slot = self._take_now(cost) or await self._wait(client, cost)
                value = await slot.do((function, arguments), cost, memory, size)
        except TimeoutError:
            if slot is None:
                self._tally.expired += 1
            raise GatewayError(
                Kind.TIMEOUT, "the deadline passed before the message was read or written"
            ) from None
        except OSError as error:
            raise GatewayError(
                Kind.OVERLOADED,
                "the system lacks the resources to read or write a message of this length",
                detail=str(error),
                retry_after=_RETRY_AFTER,
            ) from error
        return cast("T", value)

    def _take_now(self, cost: int) -> _Place | None:
        if self._free and not len(self._queue) and cost <= self._max_cost():
            return self._free.pop()
        return None

    def _max_cost(self) -> float:
        """Return the highest cost that a free process may be given now (Rule 4)."""
        return LARGE if len(self._free) == 1 < len(self._places) else math.inf

    async def _wait(self, client: tuple[str, str], cost: int) -> _Place:
        """Wait for a slot. Raises OVERLOADED."""
        tally, loop = self._tally, asyncio.get_running_loop()
        waiter: asyncio.Future[_Place] = loop.create_future()
        for rejected in self._queue.put(*client, cost, waiter):
            if not rejected.done():  # done: its caller was just cancelled
                tally.refused += 1
                rejected.set_exception(_full())
        tally.waiting += 1
        started = loop.time()
        self._assign()  # a small job may take the process that large jobs leave free
        try:
            slot = await waiter
        except asyncio.CancelledError:  # also at the deadline
            if waiter.cancelled():
                self._queue.discard(*client, waiter)
            elif waiter.exception() is None:  # the slot was assigned at the same moment
                self._freed(waiter.result())
            raise
        finally:
            tally.waiting -= 1
        tally.waited.add(loop.time() - started)
        return slot

    def _freed(self, place: _Place) -> None:
        self._free.append(place)
        self._assign()

    def _assign(self) -> None:
        """Assign free slots to waiting jobs."""
        while self._free and (waiter := self._queue.take(self._max_cost())) is not None:
            if not waiter.done():  # done: its caller was just cancelled
                waiter.set_result(self._free.pop())

    async def close(self) -> None:
        """Stop all processes at once."""
        await asyncio.gather(*(slot.end() for slot in self._places))


class _Room:
    """The memory accounts of running jobs. Their sizes are upper bounds and released soon, so a job
    that exceeds the budget waits for running jobs, and is rejected only if there are none."""

    def __init__(self) -> None:
        self.jobs = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def grow(self, memory: MemoryShare, size: int) -> None:
        """Charge ``size`` bytes to ``memory``, waiting if needed. Raises OVERLOADED."""
        while True:
            try:
                return memory.grow(size)
            except GatewayError:
                if not self.jobs:
                    raise
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def changed(self) -> None:
        """Let waiting jobs try again after a job has ended."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Place:
    """A slot for one process. ``on_free`` is called after each ``run``, whatever its result."""

    def __init__(self, freed: Callable[[_Place], None], room: _Room) -> None:
        self._freed: Final = freed
        self._room: Final = room
        self._started: asyncio.Task[_Process] | None = None

    async def do(self, job: Any, cost: int, memory: MemoryShare, size: int) -> Any:
        """Run ``job``, charging ``size`` bytes for it."""
        account: DetachedMemory = UNLIMITED
        is_counted = False

        def release() -> None:
            account.close()
            self._room.jobs -= is_counted
            self._room.changed()
            self._freed(self)

        try:
            process = await self._living()
            await self._room.grow(memory, size)
            account = memory.detach(size)
            self._room.jobs += 1
            is_counted = True
            response = await process.send(job, cost, release)
        except BaseException:
            release()
            raise
        try:
            return await response
        finally:
            del response  # its error refers to this frame, and thereby to the job

    async def _living(self) -> _Process:
        starting = self._started
        if starting is None or (starting.done() and _is_lost(starting)):
            starting = self._started = asyncio.create_task(_start())
        return await asyncio.shield(starting)

    async def end(self) -> None:
        if self._started is None:
            return
        await asyncio.wait({self._started})
        if not _is_lost(self._started):
            process = self._started.result()
            process.kill()
            await process.lost


def _full() -> GatewayError:
    return GatewayError(
        Kind.OVERLOADED,
        "too many long messages of this client are waiting for a helper process",
        retry_after=_RETRY_AFTER,
        limit="runtime.aside.fairness.MAX_COST",
    )


def _is_lost(started: asyncio.Task[_Process]) -> bool:
    """Return whether the process has ended or failed to start."""
    if started.cancelled() or started.exception() is not None:
        return True
    return started.result().lost.done()


def _flags() -> list[str]:
    """Return the options of this interpreter, such as ``-I`` and ``-W``, as multiprocessing
    does."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return flags


async def _start() -> _Process:
    memory = shared()
    fd = memory.mapped.fd
    _, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Process(memory),
        sys.executable,
        *_flags(),
        "-c",
        _PROGRAM,
        str(fd),
        *sys.path,
        pass_fds=(fd,),
        stderr=None,  # inherited
    )
    return process


@functools.lru_cache
def _known(function: Callable[..., Any]) -> bytes:
    """Return the pickled function. The same few functions recur, and hold nothing of a request."""
    return pack(function, lambda _: None)


class _Laid:
    """The long buffers of a job: already in shared memory, or to be copied there."""

    def __init__(self, memory: Shared) -> None:
        self._memory: Final = memory
        self.held: Final[list[memoryview]] = []
        self._sources: Final[list[Buffer]] = []
        self.size = 0

    def lay(self, buffer: Buffer) -> int | None:
        """Return the buffer's offset in shared memory, as ``PlaceBuffer``. Raises OSError."""
        self.size += len(buffer)
        offset = self._memory.mapped.place(buffer)
        if offset is None:
            copy = self._memory.filled(len(buffer))
            offset = self._memory.mapped.place(copy)
            if offset is not None:
                self.held.append(copy)
                self._sources.append(buffer)
        return offset

    async def copy(self) -> None:
        """Copy the buffers, one slice per turn of the event loop."""
        is_first = True
        for copy, buffer in zip(self.held, self._sources, strict=True):
            source = memoryview(buffer)
            for start in range(0, len(copy), _SLICE):
                if not is_first:
                    await asyncio.sleep(0)
                is_first = False
                copy[start : start + _SLICE] = source[start : start + _SLICE]
        self._sources.clear()


class _Process(asyncio.SubprocessProtocol):
    """A helper process, seen from the serving process. ``ended`` is done when it has ended."""

    def __init__(self, memory: Shared) -> None:
        self._memory: Final = memory
        self._received: Final = bytearray()
        self._answer: asyncio.Future[Any] | None = None
        self._held: tuple[Any, ...] = ()  # keeps shared memory allocated during a job
        self._room = memoryview(b"")  # for the response
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass
        self._transport = cast("asyncio.SubprocessTransport", transport)

    async def send(self, job: Any, cost: int, taken: Callable[[], None]) -> asyncio.Future[Any]:
        """Send ``job``, which processes at most ``cost`` bytes, and return a future of its result.
        ``on_finished`` is called when the result has arrived or will never arrive. Raises OSError,
        and INTERNAL if the process ends before it has received the job."""
        function, arguments = job
        buffers = _Laid(self._memory)
        pickled_function = _known(function)
        pickled = pickled_function + pack(arguments, buffers.lay)
        await buffers.copy()
        if self.lost.done():
            raise self._ended()
        block = self._memory.room(max(_LEAST, _TIMES * buffers.size, cost))
        offset = self._memory.mapped.place(block)
        if offset is None:
            header = HEAD.pack(len(pickled), len(pickled_function), 0, 0, 0)
        else:
            header = HEAD.pack(
                len(pickled), len(pickled_function), offset, len(block), self._memory.had(offset)
            )
        self._held, self._room = (job, buffers.held), block
        jobs = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        jobs.write(header + pickled)
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._watch = loop.call_later(_LONGEST, self.kill)
        self._taken = taken
        self._answer.add_done_callback(self._abandon)
        return self._answer

    def _abandon(self, answer: asyncio.Future[Any]) -> None:
        """Start the grace period of a job whose caller is gone (Rule 3)."""
        if answer.cancelled() and answer is self._answer:
            self._watch.cancel()
            self._watch = asyncio.get_running_loop().call_later(_ABANDONED, self.kill)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd  # there is only one pipe for output
        received = self._received
        received += data
        if len(received) < HEAD.size:
            return
        length, _, block_offset, size, allocated = HEAD.unpack_from(received)
        if len(received) < HEAD.size + length:
            return
        try:
            if size:
                self._memory.has(block_offset, allocated)
            block = self._room
            value, error = unpack(
                received[HEAD.size :],
                lambda offset, size: block[offset - block_offset : offset - block_offset + size],
            )
            received.clear()
        except Exception:  # noqa: BLE001 - after any failure the process must be replaced
            _log.exception("cannot read the response of a helper process", extra=BUG)
            self.kill()  # the caller receives an error when the process has ended
            return
        self._settle(value, error)

    def process_exited(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        del exc
        self.lost.set_result(None)
        if self._answer is not None:
            self._settle(None, self._ended())

    def _ended(self) -> GatewayError:
        return GatewayError(
            Kind.INTERNAL,
            "internal error",
            detail=f"a helper process ended with exit code {self._transport.get_returncode()}",
        )

    def _settle(self, value: Any, error: BaseException | None) -> None:
        result, self._answer = self._answer, None
        assert result is not None
        self._watch.cancel()
        self._held, self._room = (), memoryview(b"")
        if not result.done():  # done: the caller was cancelled
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)
        self._taken()

    def kill(self) -> None:
        """End the process at once."""
        self._transport.close()
