"""The pool of helper processes and the assignment of jobs to them.

Each slot of the pool starts its process on first use, and replaces a process that has died. A
process runs one job at a time. Further jobs wait in a bounded queue that is fair between clients
(``core.fair_queue``).

*Rule 1.* No job runs twice: if a process dies, its job fails.
*Rule 2.* A cancelled job leaves the queue immediately or, if it is running, may finish within a
grace period, because a new process costs more than most jobs.
*Rule 3.* If there are several processes, large jobs leave one process free for other jobs."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.fair_queue import FairQueue, QueuedJob
from infergate.core.limits import MIB
from infergate.core.log_events import BUG
from infergate.core.memory import OPTIONAL_BYTES, UNLIMITED, DetachedMemoryAccount, MemoryAccount
from infergate.routing.concurrency import SlotIntervals
from infergate.runtime.interpreter import python_command
from infergate.runtime.offload.ipc_message import HEADER, message_parts, pack, unpack
from infergate.transport.net import buffer_pool

T = TypeVar("T")

MAX_WAITING: Final = 1024
MAX_COST: Final = 1024 * MIB
"""Limits of the queue: the number of waiting jobs, and the bytes that they process."""
_MAX_JOB_SECONDS: Final = 300.0
"""Maximum duration of a job, after which its process is killed. The slowest document of the default
maximum size takes a hundredth of this time."""
_ABANDONED_JOB_SECONDS: Final = 2.0
"""Maximum duration of a job after its caller was cancelled: several times the startup time of a
process."""
LARGE_JOB_COST: Final = 4 * MIB
"""Jobs of a higher cost never use the last free process, unless the pool has only one process."""
DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a job without a deadline, including its wait in the queue. This value equals the
default timeout of backends."""
_RETRY_AFTER_SECONDS: Final = 1.0
_HELPER_MODULE: Final = "infergate.runtime.offload.process"
_log = logging.getLogger(__name__)


class HelperPool:
    """An :class:`infergate.core.offload.Offload` with up to ``max_processes`` (at least 1) helper
    processes. ``counters`` receives queue statistics."""

    def __init__(self, max_processes: int, counters: BackendCounters | None = None) -> None:
        job_memory = _JobMemory()
        self._slots: Final = [
            _HelperSlot(self._release_slot, job_memory) for _ in range(max_processes)
        ]
        self._free_slots: Final = list(self._slots)
        self._queue: Final = FairQueue[asyncio.Future[_HelperSlot]](MAX_WAITING, MAX_COST)
        self._intervals: Final = SlotIntervals()
        self._counters: Final = counters or BackendCounters()

    async def run(  # noqa: PLR0913 - the signature of Offload
        self,
        deadline: float | None,
        function: Callable[..., T],
        *arguments: Any,
        client: tuple[str, str] = ("", ""),
        cost: int = 0,
        memory: MemoryAccount = UNLIMITED,
        size: int = 0,
    ) -> T:
        """Run ``function(*arguments)`` in a helper process and return the result. The function, its
        arguments and its result are pickled. ``client`` (identity or address, and connection)
        identifies the caller in the fair queue. ``cost`` estimates the bytes that the job
        processes. While the job runs, ``size`` bytes are charged to ``memory``, even if the caller
        was cancelled.

        Raises the function's own GatewayError (any other error becomes a RuntimeError), INTERNAL if
        the process died, OVERLOADED if the queue is full or the system lacks resources, and TIMEOUT
        at ``deadline``. ``deadline`` is on the clock of ``time.monotonic`` and the event loop. If
        it is None, TIMEOUT is raised after ``DEFAULT_TIMEOUT_SECONDS``."""
        slot: _HelperSlot | None = None
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + DEFAULT_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                slot = self._take_free_slot(cost) or await self._wait_for_slot(client, cost)
                value = await slot.run(function, arguments, memory, size)
        except TimeoutError:
            if slot is None:
                self._counters.queue_expired += 1
            raise GatewayError(
                Kind.TIMEOUT, "the deadline passed before the message was read or written"
            ) from None
        except OSError as error:
            raise GatewayError(
                Kind.OVERLOADED,
                "the system lacks the resources to read or write a message of this length",
                detail=str(error),
                retry_after=_RETRY_AFTER_SECONDS,
            ) from error
        return cast("T", value)

    def _take_free_slot(self, cost: int) -> _HelperSlot | None:
        if self._free_slots and not self._queue.waiting and cost <= self._max_cost():
            return self._free_slots.pop()
        return None

    def _max_cost(self) -> float:
        """Return the highest cost of a job that a free process may take now (Rule 3)."""
        return LARGE_JOB_COST if len(self._free_slots) == 1 < len(self._slots) else math.inf

    async def _wait_for_slot(self, client: tuple[str, str], cost: int) -> _HelperSlot:
        counters, loop = self._counters, asyncio.get_running_loop()
        waiter: asyncio.Future[_HelperSlot] = loop.create_future()
        job = QueuedJob(waiter, *client, cost=max(cost, 1))
        for shed in self._queue.put(job):
            if not shed.item.done():  # the job's caller may have just been cancelled
                counters.queue_rejected += 1
                retry_after = self._intervals.wait_seconds(
                    self._queue.jobs_before(shed), loop.time()
                )
                shed.item.set_exception(_queue_full_error(retry_after))
        counters.queued += 1
        started = loop.time()
        self._assign()  # a small job may take the process that large jobs leave free
        try:
            slot = await waiter
        except asyncio.CancelledError:  # also raised at the deadline
            if waiter.cancelled():
                self._queue.discard(job)
            elif waiter.exception() is None:  # the slot was assigned in the meantime
                self._release_slot(waiter.result())
            raise
        finally:
            counters.queued -= 1
        counters.queue_wait.observe(loop.time() - started)
        return slot

    def _release_slot(self, slot: _HelperSlot) -> None:
        if self._queue.waiting:
            self._intervals.add(asyncio.get_running_loop().time())
        else:
            self._intervals.latest = None
        self._free_slots.append(slot)
        self._assign()

    def _assign(self) -> None:
        while self._free_slots and (job := self._queue.take(self._max_cost())) is not None:
            if not job.item.done():  # the job's caller may have just been cancelled
                job.item.set_result(self._free_slots.pop())

    async def close(self) -> None:
        """Kill all processes."""
        await asyncio.gather(*(slot.close() for slot in self._slots))


class _JobMemory:
    """The memory accounts of running jobs. The charged sizes are upper bounds, and are released
    when the jobs end. A job that would exceed the budget therefore waits for a running job to end,
    and is rejected only if no job is running or the memory of optional work is exhausted."""

    def __init__(self) -> None:
        self.running_jobs = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def grow(self, memory: MemoryAccount, size: int) -> None:
        """Charge ``size`` bytes to ``memory``, and wait if needed. Raises OVERLOADED."""
        while True:
            try:
                return memory.grow(size)
            except GatewayError as error:
                # Optional work must not occupy a slot until other optional work ends.
                if not self.running_jobs or error.limit == OPTIONAL_BYTES:
                    raise
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def job_ended(self) -> None:
        """Let waiting jobs try again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _HelperSlot:
    """A slot for one process. ``on_free`` is called after each ``run``, whether or not it
    succeeded."""

    def __init__(self, on_free: Callable[[_HelperSlot], None], job_memory: _JobMemory) -> None:
        self._on_free: Final = on_free
        self._job_memory: Final = job_memory
        self._starting: asyncio.Task[_HelperProcess] | None = None

    async def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        memory: MemoryAccount,
        size: int,
    ) -> Any:
        account: DetachedMemoryAccount = UNLIMITED
        is_counted = False

        def release() -> None:
            account.close()
            self._job_memory.running_jobs -= is_counted
            self._job_memory.job_ended()
            self._on_free(self)

        try:
            process = await self._running_process()
            await self._job_memory.grow(memory, size)
            account = memory.detach(size)
            self._job_memory.running_jobs += 1
            is_counted = True
            response = process.send(function, arguments, release)
        except BaseException:
            release()
            raise
        try:
            return await response
        finally:
            del response  # the error refers to this frame, which refers to the job

    async def _running_process(self) -> _HelperProcess:
        starting = self._starting
        if starting is None or (starting.done() and _has_ended(starting)):
            starting = self._starting = asyncio.create_task(_start_process())
        return await asyncio.shield(starting)

    async def close(self) -> None:
        if self._starting is None:
            return
        await asyncio.wait({self._starting})
        if not _has_ended(self._starting):
            process = self._starting.result()
            process.kill()
            await process.ended


def _queue_full_error(retry_after: float) -> GatewayError:
    return GatewayError(
        Kind.OVERLOADED,
        "too many long messages of this client are waiting for a helper process",
        retry_after=retry_after,
        limit="runtime.offload.pool.MAX_COST",
    )


def _has_ended(starting: asyncio.Task[_HelperProcess]) -> bool:
    if starting.cancelled() or starting.exception() is not None:
        return True
    return starting.result().ended.done()


async def _start_process() -> _HelperProcess:
    _, process = await asyncio.get_running_loop().subprocess_exec(
        _HelperProcess,
        *python_command(_HELPER_MODULE),
        stderr=None,  # inherit the stream of this process
    )
    return process


@functools.lru_cache
def _pickled_function(function: Callable[..., Any]) -> bytes:
    return pack(function)[0]


class _HelperProcess(asyncio.SubprocessProtocol):
    """A helper process, seen from the serving process. ``ended`` is done when the process has
    exited."""

    def __init__(self) -> None:
        self._start = b""  # the beginning of the response, until its header is complete
        self._response = memoryview(b"")
        self._received = 0
        self._result: asyncio.Future[Any] | None = None
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def send(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        on_finished: Callable[[], None],
    ) -> asyncio.Future[Any]:
        """Send a job and return the future of its result. ``on_finished`` is called when the result
        has arrived, or when it can no longer arrive. Raises INTERNAL if the process has ended."""
        if self.ended.done():
            raise self._ended_error()
        pickled_function = _pickled_function(function)
        pickled, buffers = pack(arguments)
        jobs = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        for part in message_parts(pickled, buffers, pickled_function):
            jobs.write(part)
        loop = asyncio.get_running_loop()
        self._result = loop.create_future()
        self._kill_timer = loop.call_later(_MAX_JOB_SECONDS, self.kill)
        self._on_finished = on_finished
        self._result.add_done_callback(self._on_result_done)
        return self._result

    def _on_result_done(self, result: asyncio.Future[Any]) -> None:
        """Start the grace period of a cancelled job (Rule 2)."""
        if result.cancelled() and result is self._result:
            self._kill_timer.cancel()
            self._kill_timer = asyncio.get_running_loop().call_later(
                _ABANDONED_JOB_SECONDS, self.kill
            )

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd
        try:
            response = self._receive(data)
            if response is None:
                return
            function_size, size, _ = HEADER.unpack_from(response)
            begin = HEADER.size + function_size
            value, error = unpack(response[begin : begin + size], response[begin + size :])
        except Exception:  # noqa: BLE001 - after any failure the process must be replaced
            _log.exception("cannot read the response of a helper process", extra=BUG)
            self.kill()  # the caller receives an error when the process has ended
            return
        self._finish_job(value, error)

    def _receive(self, data: bytes) -> memoryview | None:
        """Return the response if ``data`` completes it, or None."""
        if not self._response:
            self._start = data = self._start + data
            if len(data) < HEADER.size:
                return None
            self._response = buffer_pool.allocate(HEADER.size + sum(HEADER.unpack_from(data)))
            self._start, self._received = b"", 0
        begin, self._received = self._received, self._received + len(data)
        self._response[begin : self._received] = data
        if self._received < len(self._response):
            return None
        response, self._response = self._response, memoryview(b"")
        return response

    def process_exited(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        del exc
        self.ended.set_result(None)
        if self._result is not None:
            self._finish_job(None, self._ended_error())

    def _ended_error(self) -> GatewayError:
        return GatewayError(
            Kind.INTERNAL,
            "internal error",
            detail=f"a helper process ended with exit code {self._transport.get_returncode()}",
        )

    def _finish_job(self, value: Any, error: BaseException | None) -> None:
        result, self._result = self._result, None
        assert result is not None
        self._kill_timer.cancel()
        if not result.done():  # done: the caller was cancelled
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)
        self._on_finished()

    def kill(self) -> None:
        self._transport.close()
