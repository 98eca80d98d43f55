"""Helper processes: jobs, results, and crashes.

Helper processes import a job's function by name, so the tests use functions of the standard library
or of codecs.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest
from infergate.codecs.v2_rest import PLUGIN
from infergate.core.counters import BackendCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from infergate.core.memory import DetachedMemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import NO_PARAMETERS, Tensor
from infergate.core.wire import HttpRequest, join_parts
from infergate.runtime.offload import HelperPool
from infergate.runtime.offload.ipc_message import (
    HEADER,
    MIN_BUFFER_BYTES,
    message_parts,
    pack,
    unpack,
)
from infergate.runtime.offload.pool import LARGE_JOB_COST
from infergate.testing import Vector, load
from infergate.testing.canonical import to_text
from infergate.transport.server.admission import Admission, RequestAccount
from waiting import until

CODEC: Any = PLUGIN.create({})
VECTORS = Path(__file__).parents[2] / "vectors" / "v2-rest"


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[HelperPool]:
    helpers = HelperPool(1)
    yield helpers
    await helpers.close()


def helper(pool: HelperPool) -> Any:
    starting = pool._slots[0]._starting
    return starting.result() if starting is not None and starting.done() else None


def transfer(value: Any) -> Any:
    """Return ``value`` as it arrives in the other process."""
    message = memoryview(b"".join(message_parts(*pack(value), b"function")))
    function, size, _ = HEADER.unpack_from(message)
    begin = HEADER.size + function
    assert bytes(message[HEADER.size : begin]) == b"function"
    return unpack(message[begin : begin + size], message[begin + size :])


@given(
    st.lists(
        st.sampled_from(
            [0, 1, 1000, MIN_BUFFER_BYTES - 1, MIN_BUFFER_BYTES, 100_000, 1_000_000]
        ).map(os.urandom)
        | st.integers()
        | st.text(),
        max_size=6,
    )
)
def test_values_are_packed_and_unpacked(values: list[Any]) -> None:
    pickled, buffers = pack(values)
    assert len(pickled) < 6 * MIN_BUFFER_BYTES + 10_000
    assert all(len(each) >= MIN_BUFFER_BYTES or len(each) < 16 for each in buffers)
    assert transfer(values) == values


def test_long_buffers_are_aligned() -> None:
    values = [os.urandom(size) for size in (MIN_BUFFER_BYTES + 1, 100_003, MIN_BUFFER_BYTES)]
    copy = transfer(values)
    assert copy == values
    addresses = [np.frombuffer(each, np.uint8).ctypes.data for each in copy]
    assert {(address - addresses[0]) % 16 for address in addresses} == {0}
    parts = message_parts(*pack(values), b"a function name")
    assert len(parts[0]) % 16 == 0


def test_an_error_keeps_all_its_attributes() -> None:
    error = GatewayError(
        Kind.OVERLOADED, "public", origin=Origin.BACKEND, detail="private", retry_after=1.5
    )
    copy = transfer(error)
    assert type(copy) is GatewayError
    assert vars(copy) == vars(error)


class _CodedError(GatewayError):
    def __init__(self, code: str, public: str) -> None:
        super().__init__(Kind.BAD_REQUEST, public)
        self.code = code


def test_an_error_of_a_subclass_keeps_its_attributes() -> None:
    copy = transfer(_CodedError("INVALID_ARG", "refused"))
    assert type(copy) is _CodedError
    assert (copy.code, copy.kind, str(copy)) == ("INVALID_ARG", Kind.BAD_REQUEST, "refused")


def test_views_and_empty_parameters_are_packed() -> None:
    copy = transfer([memoryview(b"short"), memoryview(bytes(MIN_BUFFER_BYTES)), NO_PARAMETERS])
    assert copy == [b"short", bytes(MIN_BUFFER_BYTES), {}]
    assert copy[2] is NO_PARAMETERS


async def test_a_function_runs_in_another_process(pool: HelperPool) -> None:
    assert await pool.run(None, os.getpid) not in (os.getpid(), None)
    assert await pool.run(None, pow, 2, 10) == 1024


async def test_long_arguments_and_results_are_transferred(pool: HelperPool) -> None:
    long = os.urandom(5 * MIB)
    assert await pool.run(None, bytes.__add__, b"and ", long) == b"and " + long
    assert await pool.run(None, bytes, memoryview(long)[1:-1]) == long[1:-1]


async def test_a_result_with_several_long_buffers_is_transferred(pool: HelperPool) -> None:
    assert await pool.run(None, eval, "[bytes(700_001)] * 2 + [b'']") == [bytes(700_001)] * 2 + [
        b""
    ]


async def test_later_results_do_not_overwrite_a_result(pool: HelperPool) -> None:
    long = os.urandom(MIB)
    first = await pool.run(None, bytes, long)
    for _ in range(5):
        await pool.run(None, bytes, os.urandom(MIB))
    assert first == long


async def test_exceptions_are_raised_in_the_caller(pool: HelperPool) -> None:
    invalid = HttpRequest("POST", "/v2/models/m/infer", "", {}, (b'{"inputs": 3}',))
    with raises_kind(Kind.BAD_REQUEST, match="inputs must be an array"):
        await pool.run(None, CODEC.parse_request, invalid, DEFAULT_LIMITS)
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        await pool.run(None, int, "x")


async def test_printed_text_does_not_disturb_the_results(pool: HelperPool) -> None:
    assert await pool.run(None, print, "noise") is None
    assert await pool.run(None, pow, 3, 2) == 9


async def test_a_crash_fails_one_job(pool: HelperPool) -> None:
    with raises_kind(Kind.INTERNAL, match="internal error") as caught:
        await pool.run(None, os._exit, 3)
    assert "ended with exit code 3" in caught.value.detail
    assert await pool.run(None, pow, 3, 2) == 9
    os.kill(helper(pool)._transport.get_pid(), signal.SIGKILL)
    await helper(pool).ended
    assert await pool.run(None, pow, 3, 3) == 27


async def test_a_crash_before_the_job_is_sent_fails_it(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await pool.run(None, os.getpid)

    async def grow(*_: Any) -> None:
        os.kill(pid, signal.SIGKILL)
        await helper(pool).ended

    with monkeypatch.context() as patched:
        patched.setattr(HelperPool.__module__ + "._JobMemory.grow", grow)
        with pytest.raises(GatewayError, match="internal error"):
            await pool.run(None, len, bytes(MIN_BUFFER_BYTES))
    assert await pool.run(None, len, bytes(MIN_BUFFER_BYTES)) == MIN_BUFFER_BYTES


async def test_a_crash_while_the_job_is_sent_fails_it(pool: HelperPool) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGSTOP)  # the helper reads nothing
    job = asyncio.create_task(pool.run(None, len, bytes(5 * MIB)))
    await until(lambda: helper(pool)._result is not None)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GatewayError, match="internal error"):
        await job
    assert await pool.run(None, len, bytes(5 * MIB)) == 5 * MIB


async def test_a_hanging_process_is_replaced(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(HelperPool.__module__ + "._MAX_JOB_SECONDS", 0.01)
        with pytest.raises(GatewayError, match="internal error"):
            await asyncio.wait_for(pool.run(None, os.getpid), 30)
    assert await pool.run(None, os.getpid) != pid


async def test_a_helper_ignores_stop_signals(pool: HelperPool) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert await pool.run(None, os.getpid) == pid


async def test_a_helper_exits_when_its_pipe_is_closed(pool: HelperPool) -> None:
    await pool.run(None, os.getpid)
    helper(pool)._transport.get_pipe_transport(0).close()
    await asyncio.wait_for(helper(pool).ended, 30)


async def test_the_deadline_applies_to_waiting_and_running_jobs(pool: HelperPool) -> None:
    start = time.monotonic()
    for _ in range(2):  # the first job never ends, the second waits
        with raises_kind(Kind.TIMEOUT, match="deadline"):
            await pool.run(start + 0.01, time.sleep, 3600)


async def test_a_process_starts_although_its_callers_deadline_passed(pool: HelperPool) -> None:
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    assert helper(pool) is None  # the process is still starting
    pid = await pool.run(None, os.getpid)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    assert await pool.run(None, os.getpid) == pid


async def test_closing_ends_a_starting_process() -> None:
    pool = HelperPool(1)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    await pool.close()
    assert helper(pool).ended.done()
    await pool.close()


async def test_a_failed_start_is_retried(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", os.devnull)
        with raises_kind(Kind.OVERLOADED, match="lacks the resources") as caught:
            await pool.run(None, os.getpid)
        assert "Permission denied" in caught.value.detail
        await pool.close()
    assert await pool.run(None, pow, 2, 4) == 16


async def test_helpers_have_the_import_path_of_the_gateway(
    pool: HelperPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit('a file in the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert await pool.run(None, eval, "__import__('sys').path") == sys.path


async def test_an_unreadable_result_fails_one_job(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(HelperPool.__module__ + ".unpack", _raise_memory_error)
        with pytest.raises(GatewayError, match="internal error"):
            await pool.run(None, pow, 2, 4)
    assert await pool.run(None, pow, 2, 4) == 16


def _raise_memory_error(*_: Any) -> Any:
    raise MemoryError


async def test_a_cancelled_caller_releases_its_slot(pool: HelperPool) -> None:
    first = asyncio.create_task(pool.run(None, time.sleep, 0.2))
    await until(lambda: helper(pool) is not None and helper(pool)._result is not None)
    first.cancel()
    waiting = asyncio.create_task(pool.run(None, pow, 2, 3))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await pool.run(None, pow, 2, 5) == 32


async def test_all_waiting_jobs_run(pool: HelperPool) -> None:
    powers = await asyncio.gather(*(pool.run(None, pow, 2, n) for n in range(20)))
    assert powers == [2**n for n in range(20)]


async def test_closing_ends_running_jobs() -> None:
    pool = HelperPool(2)
    running = asyncio.create_task(pool.run(None, time.sleep, 3600))
    await until(lambda: any(slot._starting is not None for slot in pool._slots))
    await pool.close()
    with pytest.raises(GatewayError, match="internal error"):
        await running


async def test_large_jobs_leave_one_process_to_small_ones() -> None:
    counters = BackendCounters()
    pool = HelperPool(2, counters)
    large = [
        asyncio.create_task(
            pool.run(None, time.sleep, 3600, client=("bad", str(number)), cost=LARGE_JOB_COST + 1)
        )
        for number in range(3)
    ]
    await asyncio.sleep(0)
    assert counters.queued == 2
    small = pool.run(None, pow, 2, 3, client=("bad", "another"), cost=LARGE_JOB_COST)
    assert await asyncio.wait_for(small, 60) == 8
    assert not any(each.done() for each in large)
    for each in large:
        each.cancel()
    await asyncio.gather(*large, return_exceptions=True)
    assert (counters.queued, pool._queue.waiting) == (0, 0)
    await pool.close()


async def test_a_full_queue_rejects_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HelperPool.__module__ + ".MAX_WAITING", 1)
    counters = BackendCounters()
    pool = HelperPool(1, counters)
    running, waiting = (asyncio.create_task(pool.run(None, time.sleep, 3600)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(GatewayError, match="too many long messages") as caught:
        await pool.run(None, pow, 2, 2)
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    assert (counters.queued, counters.queue_rejected) == (1, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (counters.queued, pool._queue.waiting) == (0, 0)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic() + 0.01, pow, 2, 2)
    assert (counters.queue_rejected, counters.queue_expired) == (1, 1)
    running.cancel()
    await pool.close()


async def test_a_rejected_job_has_the_wait_of_the_queue_as_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HelperPool.__module__ + ".MAX_WAITING", 4)
    loop = asyncio.get_running_loop()
    clock = [loop.time()]
    pool = HelperPool(1)
    slot = pool._take_free_slot(0)
    assert slot is not None
    waiting = [asyncio.create_task(pool._wait_for_slot(("", ""), 0)) for _ in range(4)]
    await asyncio.sleep(0)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: clock[0])
        for _ in range(3):  # a job takes 7 seconds
            clock[0] += 7
            pool._release_slot(slot)
            await asyncio.sleep(0)
        waiting += [asyncio.create_task(pool._wait_for_slot(("", ""), 0)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(GatewayError, match="too many long messages") as caught:
            await pool._wait_for_slot(("", ""), 0)
    assert caught.value.retry_after == pytest.approx(5 * 7)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await pool.close()


async def test_a_displaced_job_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HelperPool.__module__ + ".MAX_WAITING", 1)
    counters = BackendCounters()
    pool = HelperPool(1, counters)
    running = asyncio.create_task(pool.run(None, time.sleep, 3600))
    await asyncio.sleep(0)

    async def run_job(connection: str, cost: int) -> int:
        return await pool.run(None, pow, 2, 2, client=("nat", connection), cost=cost)

    tasks = []
    for connection, cost in (("1", 3), ("2", 2), ("3", 1)):
        tasks.append(asyncio.create_task(run_job(connection, cost)))
        await asyncio.sleep(0)
    tasks[1].cancel()  # the displaced job is cancelled too
    with pytest.raises(GatewayError, match="too many long messages") as caught:
        await tasks[0]
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert (counters.queued, counters.queue_rejected, pool._queue.waiting) == (1, 2, 1)
    tasks[2].cancel()
    running.cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    await pool.close()


async def test_a_long_job_without_a_caller_is_killed(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HelperPool.__module__ + "._ABANDONED_JOB_SECONDS", 0.01)
    pid = await pool.run(None, os.getpid)
    for seconds in (0.1, 1.0, 10.0):  # the job begins before one of the deadlines
        with pytest.raises(GatewayError, match="deadline"):
            await pool.run(time.monotonic() + seconds, time.sleep, 3600)
        other = await asyncio.wait_for(pool.run(None, os.getpid), 60)
        if other != pid:
            break
    assert other != pid


async def test_an_idle_process_returns_freed_memory(pool: HelperPool) -> None:
    pid = await pool.run(None, os.getpid)
    before = _resident(pid)
    assert (
        await pool.run(None, eval, "len([b'x' * (1000 + n % 2) for n in range(40_000)])") == 40_000
    )
    assert _resident(pid) > before + 25 * MIB
    async with asyncio.timeout(60):
        while _resident(pid) > before + 10 * MIB:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await pool.run(None, os.getpid) == pid


def _resident(pid: int) -> int:
    """Return the resident anonymous memory of the process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * KIB


async def test_helpers_parse_vectors_like_the_gateway_process(pool: HelperPool) -> None:
    for vector in load(VECTORS):
        if not isinstance(vector.wire, HttpRequest):
            continue
        codec = PLUGIN.create(vector.options)
        assert await _parse(pool, codec, vector) == await _parse(None, codec, vector), vector


async def _parse(pool: HelperPool | None, codec: Any, vector: Vector) -> str:
    try:
        if pool is None:
            parsed = codec.parse_request(vector.wire, DEFAULT_LIMITS)
        elif codec.request_text_bytes(vector.wire):
            parsed = await pool.run(None, codec.parse_request, vector.wire, DEFAULT_LIMITS)
        else:
            parsed = codec.parse_request(vector.wire, DEFAULT_LIMITS)
    except GatewayError as error:
        return repr(error)
    return (
        f"{to_text(parsed.operation)} {parsed.response_options}"
        if isinstance(parsed, ParsedRequest)
        else "unfinished"
    )


async def test_a_helper_writes_the_same_response_as_the_gateway_process(pool: HelperPool) -> None:
    tensor = Tensor("OUT", Datatype.FP32, (50_000,), os.urandom(200_000))
    response, request = InferResponse("m", outputs=(tensor,)), ParsedRequest(InferRequest("m"))
    local = CODEC.build_response(response, request)
    remote = await pool.run(None, CODEC.build_response, response, request)
    assert join_parts(remote.body) == join_parts(local.body)
    assert (remote.status, remote.headers) == (local.status, local.headers)


class _Budget:
    def __init__(self, maximum: int) -> None:
        self.available = maximum
        self.refused = asyncio.Event()

    def grow(self, size: int) -> None:
        if size > self.available:
            self.refused.set()
            raise GatewayError(Kind.OVERLOADED, "full")
        self.available -= size

    def shrink(self, size: int) -> None:
        self.available += size

    def detach(self, size: int) -> DetachedMemoryAccount:
        return _Detached(self, size)

    def detach_optional(self, size: int) -> DetachedMemoryAccount:
        self.grow(size)
        return self.detach(size)


class _Detached(_Budget):
    def __init__(self, budget: _Budget, size: int) -> None:
        self.budget, self.size = budget, size

    def close(self) -> None:
        self.budget.shrink(self.size)


async def test_a_job_waits_for_memory_that_other_jobs_hold() -> None:
    pool, budget = HelperPool(2), _Budget(100)
    try:
        first = asyncio.create_task(pool.run(None, time.sleep, 0.5, memory=budget, size=60))
        second = asyncio.create_task(pool.run(None, len, "abc", memory=budget, size=60))
        await budget.refused.wait()
        assert not second.done()
        assert await second == 3
        await first
        assert budget.available == 100
        with pytest.raises(GatewayError, match="full"):  # the job does not wait
            await pool.run(None, len, "abc", memory=budget, size=101)
    finally:
        await pool.close()


class _StartBudget(_Budget):
    """Sets ``started`` when a job starts."""

    def __init__(self) -> None:
        super().__init__(100)
        self.started = asyncio.Event()

    def detach(self, size: int) -> DetachedMemoryAccount:
        self.started.set()
        return super().detach(size)


async def test_a_job_of_optional_work_does_not_occupy_a_helper_while_it_waits_for_memory() -> None:
    pool, budget = HelperPool(2), _StartBudget()
    optional = RequestAccount(Admission(Limits(in_flight_bytes=1000))).detach_optional(250)
    running = asyncio.create_task(pool.run(None, time.sleep, 60, memory=budget, size=10))
    try:
        await budget.started.wait()
        with pytest.raises(GatewayError, match="optional work"):
            await pool.run(None, len, "abc", memory=optional, size=1)
        assert not running.done()
    finally:
        await pool.close()
        await asyncio.gather(running, return_exceptions=True)
