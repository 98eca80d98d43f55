"""Allocation, reuse and release of buffers for long bodies."""

import numpy as np
import pytest

from infergate.core.limits import MIB
from infergate.transport.net import buffer_pool
from infergate.transport.net.buffer_pool import MAX_UNUSED_BYTES, MIN_POOLED_BYTES, BufferPool
from waiting import until


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


async def test_unused_memory_is_reused() -> None:
    pool = BufferPool()
    first, other = pool.allocate(50 * MIB), pool.allocate(40 * MIB)
    assert (len(first), len(other), pool.unused_bytes) == (50 * MIB, 40 * MIB, 0)
    address_before = address(first)
    part = first[5:10]
    part[:] = b"hello"
    del first
    third = pool.allocate(50 * MIB)
    third[5:10] = b"other"
    assert (pool.unused_bytes, bytes(part)) == (0, b"hello")
    del part
    assert pool.unused_bytes == 50 * MIB
    reused = pool.allocate(45 * MIB)
    assert (len(reused), address(reused), pool.unused_bytes) == (45 * MIB, address_before, 0)
    del reused, third, other
    assert pool.unused_bytes == 140 * MIB


async def test_a_buffer_has_no_more_than_twice_the_requested_size() -> None:
    pool = BufferPool()
    pool.allocate(100 * MIB)
    for size in (49 * MIB, 101 * MIB):
        other = pool.allocate(size)
        assert pool.unused_bytes >= 100 * MIB
        del other
    assert pool.unused_bytes == 250 * MIB
    buffer = pool.allocate(50 * MIB)
    assert pool.unused_bytes == 150 * MIB
    del buffer


@pytest.mark.parametrize(("limit", "size"), [(MAX_UNUSED_BYTES, 600 * MIB), (250 * MIB, 200 * MIB)])
async def test_unused_memory_is_limited(limit: int, size: int) -> None:
    pool = BufferPool()
    pool.max_unused_bytes = limit
    buffers = [pool.allocate(200 * MIB) for _ in range(5)]
    assert pool.unused_bytes == 0
    buffers.clear()
    assert pool.unused_bytes == size
    pool.allocate(limit + 1)
    assert pool.unused_bytes == 0


def test_unused_memory_is_limited_to_the_bytes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool.POOL, "max_unused_bytes", MAX_UNUSED_BYTES)
    for size, limit in ((100 * MIB, 100 * MIB), (2 * MAX_UNUSED_BYTES, MAX_UNUSED_BYTES)):
        buffer_pool.limit_unused_bytes(size)
        assert buffer_pool.POOL.max_unused_bytes == limit


async def test_short_buffers_are_not_kept() -> None:
    pool = BufferPool()
    assert len(pool.allocate(MIN_POOLED_BYTES - 1)) == MIN_POOLED_BYTES - 1
    assert pool.unused_bytes == 0
    pool.allocate(MIN_POOLED_BYTES)
    assert pool.unused_bytes == MIN_POOLED_BYTES


async def test_an_idle_gateway_keeps_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "IDLE_SECONDS", 0.05)
    pool = BufferPool()
    pool.allocate(100 * MIB)
    assert pool.unused_bytes == 100 * MIB
    await until(lambda: pool.unused_bytes == 0)


async def test_recently_used_memory_is_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(buffer_pool.time, "monotonic", lambda: now)
    pool = BufferPool()
    first, second = pool.allocate(100 * MIB), pool.allocate(50 * MIB)
    del first, second
    now += 29
    pool.allocate(100 * MIB)
    now += 2
    pool.drop_idle()
    assert pool.unused_bytes == 100 * MIB
    now += 30
    pool.drop_idle()
    assert pool.unused_bytes == 0


def test_no_buffers_are_kept_without_an_event_loop() -> None:
    pool = BufferPool()
    pool.allocate(100 * MIB)
    assert pool.unused_bytes == 0
