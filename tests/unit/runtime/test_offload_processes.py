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

from infergate.codecs.base import ParsedRequest
from infergate.codecs.v2_rest import PLUGIN
from infergate.core.counters import BackendCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB
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

CODEC: Any = PLUGIN.create({})
VECTORS = Path(__file__).parents[2] / "vectors" / "v2-rest"


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[HelperPool]:
    made = HelperPool(1)
    yield made
    await made.close()


def process(pool: HelperPool) -> Any:
    started = pool._slots[0]._starting
    return started.result() if started is not None and started.done() else None


# ---- parcels


def sent(value: Any) -> Any:
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
def test_packed_values_round_trip(values: list[Any]) -> None:
    pickled, buffers = pack(values)
    assert len(pickled) < 6 * MIN_BUFFER_BYTES + 10_000
    assert all(len(each) >= MIN_BUFFER_BYTES or len(each) < 16 for each in buffers)
    assert sent(values) == values


def test_long_buffers_are_aligned() -> None:
    values = [os.urandom(size) for size in (MIN_BUFFER_BYTES + 1, 100_003, MIN_BUFFER_BYTES)]
    found = sent(values)
    assert found == values
    addresses = [np.frombuffer(each, np.uint8).ctypes.data for each in found]
    assert {(address - addresses[0]) % 16 for address in addresses} == {0}
    parts = message_parts(*pack(values), b"of any length")
    assert len(parts[0]) % 16 == 0


def test_an_error_is_packed_whole() -> None:
    error = GatewayError(
        Kind.OVERLOADED, "told", origin=Origin.BACKEND, detail="not told", retry_after=1.5
    )
    found = sent(error)
    assert type(found) is GatewayError
    assert vars(found) == vars(error)


class _RefusalError(GatewayError):
    def __init__(self, code: str, public: str) -> None:
        super().__init__(Kind.BAD_REQUEST, public)
        self.code = code


def test_custom_errors_are_packed_completely() -> None:
    found = sent(_RefusalError("INVALID_ARG", "told"))
    assert type(found) is _RefusalError
    assert (found.code, found.kind, str(found)) == ("INVALID_ARG", Kind.BAD_REQUEST, "told")


def test_views_and_empty_parameters_are_packed() -> None:
    found = sent([memoryview(b"short"), memoryview(bytes(MIN_BUFFER_BYTES)), NO_PARAMETERS])
    assert found == [b"short", bytes(MIN_BUFFER_BYTES), {}]
    assert found[2] is NO_PARAMETERS


# ---- the pool


async def test_a_function_is_done_elsewhere(pool: HelperPool) -> None:
    assert await pool.run(None, os.getpid) not in (os.getpid(), None)
    assert await pool.run(None, pow, 2, 10) == 1024


async def test_a_long_buffer_round_trips(pool: HelperPool) -> None:
    long = os.urandom(5 * MIB)
    assert await pool.run(None, bytes.__add__, b"and ", long) == b"and " + long
    assert await pool.run(None, bytes, memoryview(long)[1:-1]) == long[1:-1]


async def test_several_long_buffers_round_trip(pool: HelperPool) -> None:
    assert await pool.run(None, eval, "[bytes(700_001)] * 2 + [b'']") == [bytes(700_001)] * 2 + [
        b""
    ]


async def test_a_result_is_independent_of_later_jobs(pool: HelperPool) -> None:
    long = os.urandom(MIB)
    first = await pool.run(None, bytes, long)
    for _ in range(5):
        await pool.run(None, bytes, os.urandom(MIB))
    assert first == long


async def test_exceptions_of_a_job_are_raised_in_the_caller(pool: HelperPool) -> None:
    wrong = HttpRequest("POST", "/v2/models/m/infer", "", {}, (b'{"inputs": 3}',))
    with pytest.raises(GatewayError, match="inputs must be an array") as caught:
        await pool.run(None, CODEC.parse_request, wrong, DEFAULT_LIMITS)
    assert caught.value.kind is Kind.BAD_REQUEST
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        await pool.run(None, int, "x")


async def test_printed_output_is_not_a_result(pool: HelperPool) -> None:
    assert await pool.run(None, print, "noise") is None
    assert await pool.run(None, pow, 3, 2) == 9


async def test_a_crash_fails_one_job(pool: HelperPool) -> None:
    with pytest.raises(GatewayError, match="internal error") as caught:
        await pool.run(None, os._exit, 3)
    assert caught.value.kind is Kind.INTERNAL
    assert "ended with exit code 3" in caught.value.detail
    assert await pool.run(None, pow, 3, 2) == 9
    os.kill(process(pool)._transport.get_pid(), signal.SIGKILL)
    await process(pool).ended
    assert await pool.run(None, pow, 3, 3) == 27


async def test_a_crash_before_the_job_arrives_fails_it(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await pool.run(None, os.getpid)

    async def grow(*_: Any) -> None:
        os.kill(pid, signal.SIGKILL)
        await process(pool).ended

    with monkeypatch.context() as patched:
        patched.setattr(HelperPool.__module__ + "._JobMemory.grow", grow)
        with pytest.raises(GatewayError, match="internal error"):
            await pool.run(None, len, bytes(MIN_BUFFER_BYTES))
    assert await pool.run(None, len, bytes(MIN_BUFFER_BYTES)) == MIN_BUFFER_BYTES


async def test_a_crash_while_the_job_is_sent_fails_it(pool: HelperPool) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGSTOP)  # so that it reads nothing
    job = asyncio.create_task(pool.run(None, len, bytes(5 * MIB)))
    while process(pool)._result is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GatewayError, match="internal error"):
        await job
    assert await pool.run(None, len, bytes(5 * MIB)) == 5 * MIB


async def test_a_process_that_hangs_is_replaced(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(HelperPool.__module__ + "._MAX_JOB_SECONDS", 0.01)
        with pytest.raises(GatewayError, match="internal error"):
            await asyncio.wait_for(pool.run(None, os.getpid), 30)
    assert await pool.run(None, os.getpid) != pid


async def test_helpers_ignore_signals_to_the_group(pool: HelperPool) -> None:
    pid = await pool.run(None, os.getpid)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert await pool.run(None, os.getpid) == pid


async def test_helpers_end_with_their_parent(pool: HelperPool) -> None:
    await pool.run(None, os.getpid)
    process(pool)._transport.get_pipe_transport(0).close()
    await asyncio.wait_for(process(pool).ended, 30)


async def test_the_deadline_holds_in_line_and_at_work(pool: HelperPool) -> None:
    began = time.monotonic()
    for _ in range(2):  # the first job never ends, the second waits
        with pytest.raises(GatewayError, match="deadline") as caught:
            await pool.run(began + 0.01, time.sleep, 3600)
        assert caught.value.kind is Kind.TIMEOUT


async def test_a_helper_starts_although_its_caller_times_out(pool: HelperPool) -> None:
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    assert process(pool) is None  # still running
    pid = await pool.run(None, os.getpid)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    assert await pool.run(None, os.getpid) == pid


async def test_closing_ends_starting_helpers() -> None:
    pool = HelperPool(1)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic(), os.getpid)
    await pool.close()
    assert process(pool).ended.done()
    await pool.close()


async def test_a_failed_start_is_retried(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", os.devnull)
        with pytest.raises(GatewayError, match="lacks the resources") as caught:
            await pool.run(None, os.getpid)
        assert caught.value.kind is Kind.OVERLOADED
        assert "Permission denied" in caught.value.detail
        await pool.close()
    assert await pool.run(None, pow, 2, 4) == 16


async def test_helpers_have_the_same_module_path(
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
        patched.setattr(HelperPool.__module__ + ".unpack", _cannot)
        with pytest.raises(GatewayError, match="internal error"):
            await pool.run(None, pow, 2, 4)
    assert await pool.run(None, pow, 2, 4) == 16


def _cannot(*_: Any) -> Any:
    raise MemoryError


async def test_a_cancelled_caller_releases_its_slot(pool: HelperPool) -> None:
    first = asyncio.create_task(pool.run(None, time.sleep, 0.2))
    while process(pool) is None or process(pool)._result is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    first.cancel()
    in_line = asyncio.create_task(pool.run(None, pow, 2, 3))
    await asyncio.sleep(0)
    in_line.cancel()
    assert await pool.run(None, pow, 2, 5) == 32


async def test_jobs_that_wait_are_all_done(pool: HelperPool) -> None:
    powers = await asyncio.gather(*(pool.run(None, pow, 2, n) for n in range(20)))
    assert powers == [2**n for n in range(20)]


async def test_closing_ends_running_jobs() -> None:
    pool = HelperPool(2)
    at_work = asyncio.create_task(pool.run(None, time.sleep, 3600))
    while all(position._starting is None for position in pool._slots):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(GatewayError, match="internal error"):
        await at_work


# ---- shared by several clients


async def test_large_jobs_leave_one_process_free() -> None:
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
    assert (counters.queued, len(pool._queue)) == (0, 0)
    await pool.close()


async def test_a_full_queue_rejects_until_a_caller_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HelperPool.__module__ + ".MAX_WAITING", 2)
    counters = BackendCounters()
    pool = HelperPool(1, counters)
    at_work, waits = (asyncio.create_task(pool.run(None, time.sleep, 3600)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(GatewayError, match="too many long messages") as caught:
        await pool.run(None, pow, 2, 2)
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    assert (counters.queued, counters.queue_rejected) == (1, 1)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert (counters.queued, len(pool._queue)) == (0, 0)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic() + 0.01, pow, 2, 2)
    assert (counters.queue_rejected, counters.queue_expired) == (1, 1)
    at_work.cancel()
    await pool.close()


async def test_a_displaced_job_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HelperPool.__module__ + ".MAX_WAITING", 2)
    counters = BackendCounters()
    pool = HelperPool(1, counters)
    at_work = asyncio.create_task(pool.run(None, time.sleep, 3600))
    await asyncio.sleep(0)

    async def ask(connection: str, cost: int) -> int:
        return await pool.run(None, pow, 2, 2, client=("nat", connection), cost=cost)

    tasks = []
    for connection, cost in (("1", 3), ("2", 2), ("3", 1)):
        tasks.append(asyncio.create_task(ask(connection, cost)))
        await asyncio.sleep(0)
    tasks[1].cancel()  # replaced at the same moment
    for task in tasks[:1]:
        with pytest.raises(GatewayError, match="too many long messages") as caught:
            await task
        assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert (counters.queued, counters.queue_rejected, len(pool._queue)) == (1, 2, 1)
    tasks[2].cancel()
    at_work.cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    await pool.close()


async def test_a_long_job_without_a_caller_is_killed(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HelperPool.__module__ + "._ABANDONED_JOB_SECONDS", 0.01)
    pid = await pool.run(None, os.getpid)
    with pytest.raises(GatewayError, match="deadline"):
        await pool.run(time.monotonic() + 0.1, time.sleep, 3600)
    assert await asyncio.wait_for(pool.run(None, os.getpid), 60) != pid


async def test_an_idle_helper_returns_memory_to_the_system(pool: HelperPool) -> None:
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
    """Return the private memory of the process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * KIB


# ---- codecs that say their messages may hold much text


async def test_every_vector_is_parsed_alike_in_a_helper(pool: HelperPool) -> None:
    for vector in load(VECTORS):
        if not isinstance(vector.wire, HttpRequest):
            continue
        codec = PLUGIN.create(vector.options)
        assert await _read(pool, codec, vector) == await _read(None, codec, vector), vector


async def _read(pool: HelperPool | None, codec: Any, vector: Vector) -> str:
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


async def test_a_long_response_is_written_alike_in_a_helper(pool: HelperPool) -> None:
    tensor = Tensor("OUT", Datatype.FP32, (50_000,), os.urandom(200_000))
    answer, request = InferResponse("m", outputs=(tensor,)), ParsedRequest(InferRequest("m"))
    here = CODEC.build_response(answer, request)
    there = await pool.run(None, CODEC.build_response, answer, request)
    assert join_parts(there.body) == join_parts(here.body)
    assert (there.status, there.headers) == (here.status, here.headers)


class _Budget:
    """A memory budget of ``maximum`` bytes, shared by all."""

    def __init__(self, maximum: int) -> None:
        self.left = maximum
        self.refused = asyncio.Event()

    def grow(self, size: int) -> None:
        if size > self.left:
            self.refused.set()
            raise GatewayError(Kind.OVERLOADED, "full")
        self.left -= size

    def shrink(self, size: int) -> None:
        self.left += size

    def detach(self, size: int) -> DetachedMemoryAccount:
        return _Detached(self, size)


class _Detached(_Budget):
    def __init__(self, budget: _Budget, size: int) -> None:
        self.budget, self.size = budget, size

    def close(self) -> None:
        self.budget.shrink(self.size)


async def test_a_job_waits_for_memory_held_by_others() -> None:
    pool, budget = HelperPool(2), _Budget(100)
    try:
        first = asyncio.create_task(pool.run(None, time.sleep, 0.5, memory=budget, size=60))
        second = asyncio.create_task(pool.run(None, len, "abc", memory=budget, size=60))
        await budget.refused.wait()
        assert not second.done()
        assert await second == 3
        await first
        assert budget.left == 100
        with pytest.raises(GatewayError, match="full"):  # without waiting
            await pool.run(None, len, "abc", memory=budget, size=101)
    finally:
        await pool.close()
