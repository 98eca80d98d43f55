"""The processes beside, and who may use which.

*Strategy.* Each place in the pool starts its process when it is first used, and again where that
has died. A process does one job at a time; jobs that find none free wait in a bounded queue that is
fair between clients (``fairness``). Answers come in by callbacks of the pipe, so no task waits for
them. A process starts whether or not its first caller waits for that: its caller may be in a hurry.
*Rule 1.* What a caller asked is never done twice: a process that dies takes its job with it.
*Rule 2.* What a process reads or writes in shared memory stays until it has answered, whatever
became of its caller.
*Rule 3.* A job whose caller goes away leaves the queue at once. One that runs may end, for a new
process costs more than most jobs; a long one is killed.
*Rule 4.* Large jobs leave one process free for the others, where there are several.
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
"""Room for an answer, by what it is made of: a number of 8 bytes takes up to 25 as text, and one of
2 bytes of text takes 8. Only what is used of it takes memory; what does not fit is pickled."""
_LONGEST: Final = 300.0
"""Seconds that a job may take: a hundred times what the worst document of the default size does. A
process that takes longer hangs, and would keep its place for ever."""
_ABANDONED: Final = 2.0
"""Seconds that a job may go on without its caller: several times what a new process costs."""
_SLICE: Final = 4 * MIB
"""Bytes that are copied at once: they take the event loop 4 ms."""
LARGE: Final = 4 * MIB
"""Jobs that cost more never occupy the last free process."""
PATIENCE: Final = 30.0
"""Seconds for waiting and work where the caller has set no deadline: the default timeout of
backends, which begins when a request is sent."""
_RETRY_AFTER: Final = 1.0
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from infergate.runtime.aside.process import main; main(int(sys.argv[1]))"
)
"""Modules are found where this process finds them: ``-m`` would look in the working directory
first, and knows nothing of what this process has added to its path."""
_log = logging.getLogger(__name__)


class Pool:
    """``most`` processes (over 0); implements :class:`infergate.core.aside.Aside`. Waiting,
    refusals and waiting times are counted in ``tally``."""

    def __init__(self, most: int, tally: Tally | None = None) -> None:
        room = _Room()
        self._places: Final = [_Place(self._freed, room) for _ in range(most)]
        self._free: Final = list(self._places)
        self._queue: Final = FairQueue[asyncio.Future[_Place]](MAX_WAITING, MAX_COST)
        self._tally: Final = tally or Tally()

    async def run(  # noqa: PLR0913 - see Aside
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str] = ("", ""),
        cost: int = 0,
        memory: MemoryShare = UNLIMITED,
        size: int = 0,
    ) -> T:
        """``function(*arguments)`` by another process; all of it is pickled. ``client`` is who
        shares the queue fairly with others: an identity or address, and a connection; ``cost`` is
        an estimate of the bytes that the job goes through. From its beginning to its end, whatever
        becomes of its caller, ``size`` bytes are counted in ``memory`` for what it allocates.

        Raises what it raises (GatewayError, else RuntimeError), TIMEOUT at ``deadline`` (of
        ``time.monotonic``, which is the loop's clock; None: after ``PATIENCE``), INTERNAL where the
        process died, OVERLOADED where the queue is full or the system has no room for one.
        """
        place: _Place | None = None
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + PATIENCE
        try:
            async with asyncio.timeout_at(deadline):
                place = self._take_now(cost) or await self._wait(client, cost)
                value = await place.do((function, arguments), cost, memory, size)
        except TimeoutError:
            if place is None:
                self._tally.expired += 1
            raise GatewayError(
                Kind.TIMEOUT, "the deadline passed before the message was read or written"
            ) from None
        except OSError as error:
            raise GatewayError(
                Kind.OVERLOADED,
                "there is no room to read or write so long a message",
                detail=str(error),
                retry_after=_RETRY_AFTER,
            ) from error
        return cast("T", value)

    def _take_now(self, cost: int) -> _Place | None:
        if self._free and not len(self._queue) and cost <= self._max_cost():
            return self._free.pop()
        return None

    def _max_cost(self) -> float:
        """Rule 4, where a process is free."""
        return LARGE if len(self._free) == 1 < len(self._places) else math.inf

    async def _wait(self, client: tuple[str, str], cost: int) -> _Place:
        """Wait for a process. Raises OVERLOADED."""
        tally, loop = self._tally, asyncio.get_running_loop()
        waiter: asyncio.Future[_Place] = loop.create_future()
        for refused in self._queue.put(*client, cost, waiter):
            if not refused.done():  # else its caller has just gone away
                tally.refused += 1
                refused.set_exception(_full())
        tally.waiting += 1
        began = loop.time()
        self._assign()  # a small job may have the process that large ones leave free
        try:
            place = await waiter
        except asyncio.CancelledError:  # also at the deadline
            if waiter.cancelled():
                self._queue.discard(*client, waiter)
            elif waiter.exception() is None:  # it was called at the same moment
                self._freed(waiter.result())
            raise
        finally:
            tally.waiting -= 1
        tally.waited.add(loop.time() - began)
        return place

    def _freed(self, place: _Place) -> None:
        self._free.append(place)
        self._assign()

    def _assign(self) -> None:
        """Give free processes to those who wait."""
        while self._free and (waiter := self._queue.take(self._max_cost())) is not None:
            if not waiter.done():  # else its caller has just gone away
                waiter.set_result(self._free.pop())

    async def close(self) -> None:
        """End all processes, whatever they are at."""
        await asyncio.gather(*(place.end() for place in self._places))


class _Room:
    """Memory for ``jobs``, those that are being done. What they take is an upper bound and given
    back soon, so a job that finds too little left waits for them, and is refused only where there
    are none."""

    def __init__(self) -> None:
        self.jobs = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def grow(self, memory: MemoryShare, size: int) -> None:
        """``memory.grow(size)``. Raises OVERLOADED."""
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
        """A job is over: let those who wait try again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class _Place:
    """Room for one process. ``freed`` is called after each ``do``, whatever became of it."""

    def __init__(self, freed: Callable[[_Place], None], room: _Room) -> None:
        self._freed: Final = freed
        self._room: Final = room
        self._started: asyncio.Task[_Process] | None = None

    async def do(self, job: Any, cost: int, memory: MemoryShare, size: int) -> Any:
        """``job``, for which ``size`` bytes are counted."""
        account: DetachedMemory = UNLIMITED
        counted = False

        def over() -> None:
            account.close()
            self._room.jobs -= counted
            self._room.changed()
            self._freed(self)

        try:
            process = await self._living()
            await self._room.grow(memory, size)
            account = memory.detach(size)
            self._room.jobs += 1
            counted = True
            answer = await process.send(job, cost, over)
        except BaseException:
            over()
            raise
        try:
            return await answer
        finally:
            del answer  # it knows its error, which knows this frame, and the job

    async def _living(self) -> _Process:
        started = self._started
        if started is None or (started.done() and _is_lost(started)):
            started = self._started = asyncio.create_task(_start())
        return await asyncio.shield(started)

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
        "too many long messages of this client wait for a helper process",
        retry_after=_RETRY_AFTER,
        limit="runtime.aside.fairness.MAX_COST",
    )


def _is_lost(started: asyncio.Task[_Process]) -> bool:
    """Whether what was started is no more, or never was."""
    if started.cancelled() or started.exception() is not None:
        return True
    return started.result().lost.done()


def _flags() -> list[str]:
    """Of this interpreter, such as ``-I`` and ``-W``; multiprocessing passes the same."""
    found: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return found


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
        stderr=None,  # this process's own
    )
    return process


@functools.lru_cache
def _known(function: Callable[..., Any]) -> bytes:
    """Its pickle. Each is asked for over and over, and holds nothing of one request."""
    return pack(function, lambda _: None)


class _Laid:
    """A job's long buffers, each where the other process finds it: where it is, or to be copied."""

    def __init__(self, memory: Shared) -> None:
        self._memory: Final = memory
        self.held: Final[list[memoryview]] = []
        self._sources: Final[list[Buffer]] = []
        self.size = 0

    def lay(self, buffer: Buffer) -> int | None:
        """See ``parcel.Lay``. Raises OSError."""
        self.size += len(buffer)
        place = self._memory.mapped.place(buffer)
        if place is None:
            copy = self._memory.filled(len(buffer))
            place = self._memory.mapped.place(copy)
            if place is not None:
                self.held.append(copy)
                self._sources.append(buffer)
        return place

    async def copy(self) -> None:
        """Fill what was laid, a slice in each turn of the event loop."""
        first = True
        for copy, buffer in zip(self.held, self._sources, strict=True):
            source = memoryview(buffer)
            for start in range(0, len(copy), _SLICE):
                if not first:
                    await asyncio.sleep(0)
                first = False
                copy[start : start + _SLICE] = source[start : start + _SLICE]
        self._sources.clear()


class _Process(asyncio.SubprocessProtocol):
    """A process beside, as this one sees it. ``lost`` is done when it is no more."""

    def __init__(self, memory: Shared) -> None:
        self._memory: Final = memory
        self._received: Final = bytearray()
        self._answer: asyncio.Future[Any] | None = None
        self._held: tuple[Any, ...] = ()  # what lies in shared memory, for as long as it works
        self._room = memoryview(b"")  # for its answer
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none by name
        self._transport = cast("asyncio.SubprocessTransport", transport)

    async def send(self, job: Any, cost: int, taken: Callable[[], None]) -> asyncio.Future[Any]:
        """The answer to ``job``, which goes through ``cost`` bytes at most. ``taken`` is called
        when the answer is here, or will never be. Raises OSError, and INTERNAL where the process
        ends before it has the job."""
        function, arguments = job
        laid = _Laid(self._memory)
        known = _known(function)
        pickled = known + pack(arguments, laid.lay)
        await laid.copy()
        if self.lost.done():
            raise self._ended()
        room = self._memory.room(max(_LEAST, _TIMES * laid.size, cost))
        place = self._memory.mapped.place(room)
        if place is None:
            head = HEAD.pack(len(pickled), len(known), 0, 0, 0)
        else:
            head = HEAD.pack(len(pickled), len(known), place, len(room), self._memory.had(place))
        self._held, self._room = (job, laid.held), room
        jobs = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        jobs.write(head + pickled)
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._watch = loop.call_later(_LONGEST, self.kill)
        self._taken = taken
        self._answer.add_done_callback(self._abandon)
        return self._answer

    def _abandon(self, answer: asyncio.Future[Any]) -> None:
        """Rule 3."""
        if answer.cancelled() and answer is self._answer:
            self._watch.cancel()
            self._watch = asyncio.get_running_loop().call_later(_ABANDONED, self.kill)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd  # the only one
        received = self._received
        received += data
        if len(received) < HEAD.size:
            return
        length, _, place, size, had = HEAD.unpack_from(received)
        if len(received) < HEAD.size + length:
            return
        try:
            if size:
                self._memory.has(place, had)
            room = self._room
            value, error = unpack(
                received[HEAD.size :], lambda at, size: room[at - place : at - place + size]
            )
            received.clear()
        except Exception:  # noqa: BLE001 - the process has to go, whatever it was
            _log.exception("an answer of a process beside cannot be read", extra=BUG)
            self.kill()  # whoever waits is told when it is no more
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
            detail=f"a process beside ended with {self._transport.get_returncode()}",
        )

    def _settle(self, value: Any, error: BaseException | None) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        self._watch.cancel()
        self._held, self._room = (), memoryview(b"")
        if not answer.done():  # the caller may have gone away
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)
        self._taken()

    def kill(self) -> None:
        """End it at once: it keeps nothing."""
        self._transport.close()
