"""The buffer pool: allocation, reuse and release of memory for long bodies."""

import numpy as np
import pytest
from transport_kit import until

from infergate.core.limits import MIB
from infergate.transport.net import buffer_pool
from infergate.transport.net.buffer_pool import MAX_UNUSED_BYTES, MIN_POOLED_BYTES, BufferPool


def address(buffer: memoryview) -> int:
    """Return the address of the buffer."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


async def test_unused_memory_is_reused() -> None:
    made = BufferPool()
    first, other = made.allocate(50 * MIB), made.allocate(40 * MIB)
    assert (len(first), len(other), made.unused_bytes) == (50 * MIB, 40 * MIB, 0)
    where = address(first)
    part = first[5:10]
    part[:] = b"hello"
    del first
    third = made.allocate(50 * MIB)
    third[5:10] = b"other"
    assert (made.unused_bytes, bytes(part)) == (0, b"hello")
    del part
    assert made.unused_bytes == 50 * MIB
    again = made.allocate(45 * MIB)
    assert (len(again), address(again), made.unused_bytes) == (45 * MIB, where, 0)
    del again, third, other
    assert made.unused_bytes == 140 * MIB


async def test_a_buffer_has_no_more_than_twice_the_requested_size() -> None:
    made = BufferPool()
    made.allocate(100 * MIB)
    for size in (49 * MIB, 101 * MIB):
        other = made.allocate(size)
        assert made.unused_bytes >= 100 * MIB
        del other
    assert made.unused_bytes == 250 * MIB
    buffer = made.allocate(50 * MIB)
    assert made.unused_bytes == 150 * MIB
    del buffer


async def test_the_kept_memory_is_bounded() -> None:
    made = BufferPool()
    buffers = [made.allocate(200 * MIB) for _ in range(5)]
    assert made.unused_bytes == 0
    buffers.clear()
    assert made.unused_bytes == 600 * MIB
    made.allocate(MAX_UNUSED_BYTES + 1)
    assert made.unused_bytes == 0


async def test_the_operator_may_want_less() -> None:
    made = BufferPool()
    made.max_unused_bytes = 90 * MIB
    made.allocate(100 * MIB)
    assert made.unused_bytes == 0
    made.allocate(50 * MIB)
    assert made.unused_bytes == 50 * MIB


def test_kept_memory_is_bounded_by_in_flight_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool.POOL, "max_unused_bytes", MAX_UNUSED_BYTES)
    for size, limit in ((100 * MIB, 100 * MIB), (2 * MAX_UNUSED_BYTES, MAX_UNUSED_BYTES)):
        buffer_pool.limit_unused_bytes(size)
        assert buffer_pool.POOL.max_unused_bytes == limit


async def test_short_floats_are_printed_as_by_c() -> None:
    made = BufferPool()
    assert len(made.allocate(MIN_POOLED_BYTES - 1)) == MIN_POOLED_BYTES - 1
    assert made.unused_bytes == 0
    made.allocate(MIN_POOLED_BYTES)
    assert made.unused_bytes == MIN_POOLED_BYTES


async def test_an_idle_gateway_keeps_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "IDLE_SECONDS", 0.05)
    made = BufferPool()
    made.allocate(100 * MIB)
    assert made.unused_bytes == 100 * MIB
    await until(lambda: made.unused_bytes == 0)


async def test_recently_used_memory_is_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(buffer_pool.time, "monotonic", lambda: now)
    made = BufferPool()
    first, second = made.allocate(100 * MIB), made.allocate(50 * MIB)
    del first, second
    now += 29
    made.allocate(100 * MIB)
    now += 2
    made.drop_idle()
    assert made.unused_bytes == 100 * MIB
    now += 30
    made.drop_idle()
    assert made.unused_bytes == 0


def test_no_buffers_are_kept_without_an_event_loop() -> None:
    made = BufferPool()
    made.allocate(100 * MIB)
    assert made.unused_bytes == 0
