"""The stores in memory: the store of one process, and the store that several processes share."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infergate
from infergate.caching import shared_store
from infergate.caching.local_store import LocalStore
from infergate.caching.shared_store import BLOCK_BYTES, SharedStore
from infergate.caching.store import MAX_BYTES_ON_LOOP, ResponseStore, StoredValue

SIZE = 64 * BLOCK_BYTES


def key(number: int) -> bytes:
    return number.to_bytes(32)


def value(data: bytes, expires_at: float = 100.0) -> StoredValue:
    return StoredValue(data, 1.0, expires_at)


@pytest.fixture
def file() -> Iterator[int]:
    fd = SharedStore.create_file()
    yield fd
    os.close(fd)


def shared(file: int, max_bytes: int = SIZE) -> SharedStore:
    store = SharedStore(file)
    store.set_max_bytes(max_bytes)
    return store


@pytest.fixture(params=["local", "shared"])
def store(request: pytest.FixtureRequest, file: int) -> ResponseStore:
    if request.param == "shared":
        return shared(file)
    store = LocalStore()
    store.set_max_bytes(SIZE)
    return store


async def test_a_value_is_returned_until_it_expires(store: ResponseStore) -> None:
    assert await store.get(key(1), 2.0) is None
    assert await store.put(key(1), value(b"abc"))
    assert await store.get(key(1), 99.9) == value(b"abc")
    assert await store.get(key(2), 2.0) is None
    assert await store.get(key(1), 100.0) is None
    assert (store.usage().entries, store.usage().bytes) == (0, 0)


@pytest.mark.parametrize("expires_at", [1e12, 1e300, float("inf")])
async def test_a_value_may_never_expire(store: ResponseStore, expires_at: float) -> None:
    assert await store.put(key(1), value(b"abc", expires_at))
    result = await store.get(key(1), 1e8)
    assert result is not None
    assert result.value == b"abc"


async def test_a_value_is_replaced(store: ResponseStore) -> None:
    for data in (b"abc", b"x" * 3 * BLOCK_BYTES, b""):
        assert await store.put(key(1), value(data))
        assert await store.get(key(1), 2.0) == value(data)
    assert store.usage().entries == 1


async def test_the_least_recently_used_values_are_evicted(store: ResponseStore) -> None:
    size = SIZE // 4 - BLOCK_BYTES
    for number in range(4):
        await store.put(key(number), value(b"x" * size))
    await store.get(key(0), 2.0)
    for number in (4, 5):
        await store.put(key(number), value(b"y" * size))
    present = [number for number in range(6) if await store.get(key(number), 2.0)]
    assert present == [0, 3, 4, 5]
    assert store.usage().evictions == 2
    assert store.usage().bytes <= SIZE


async def test_a_value_larger_than_the_store_is_not_kept(store: ResponseStore) -> None:
    await store.put(key(1), value(b"abc"))
    assert not await store.put(key(2), value(b"x" * (SIZE + 1)))
    assert await store.get(key(1), 2.0) == value(b"abc")


async def test_a_store_of_size_zero_is_empty_and_keeps_nothing(store: ResponseStore) -> None:
    await store.put(key(1), value(b"abc"))
    store.set_max_bytes(0)
    assert not await store.put(key(1), value(b"abc"))
    store.set_max_bytes(SIZE)
    assert await store.get(key(1), 2.0) is None
    assert await store.put(key(1), value(b"abc"))


async def test_epochs_count_the_invalidations_of_each_backend(store: ResponseStore) -> None:
    await store.invalidate("a")
    await store.invalidate("a")
    await store.invalidate("b")
    assert [store.epoch(name) for name in "abc"] == [2, 1, 0]
    store.set_max_bytes(0)
    assert store.epoch("a") == 2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.binary(max_size=40).map(lambda part: part * 400), st.booleans()
        ),
        max_size=60,
    )
)
@settings(max_examples=30)
def test_processes_share_one_store(steps: list[tuple[int, bytes, bool]]) -> None:
    """The store may lose values, but never returns a value other than the dictionary's."""
    fd = SharedStore.create_file()
    stores = [shared(fd, 12 * BLOCK_BYTES) for _ in range(2)]
    model: dict[int, bytes] = {}

    async def run() -> None:
        for number, data, reads in steps:
            if reads:
                stored = await stores[0].get(key(number), 2.0)
                if stored is None:
                    model.pop(number, None)
                else:
                    assert stored.value == model[number]
            elif await stores[1].put(key(number), value(data)):
                model[number] = data
                assert await stores[0].get(key(number), 2.0) == value(data)
            usage = stores[0].usage()
            assert usage.bytes <= 12 * BLOCK_BYTES
            used = [await stores[0].get(key(n), 2.0) for n in range(6)]
            stored_values = [each for each in used if each is not None]
            assert usage.entries == len(stored_values)
            blocks = sum(max(1, -(-len(s.value) // BLOCK_BYTES)) for s in stored_values)
            assert usage.bytes == blocks * BLOCK_BYTES

    asyncio.run(run())
    os.close(fd)


async def test_stores_of_different_sizes_use_the_same_file(file: int) -> None:
    small, large = shared(file, 4 * BLOCK_BYTES), shared(file)
    for number in range(20):
        assert await large.put(key(number), value(b"x" * BLOCK_BYTES * 2))
    assert await small.get(key(19), 2.0) == value(b"x" * BLOCK_BYTES * 2)
    assert await small.put(key(20), value(b"abc"))
    assert small.usage().bytes <= 4 * BLOCK_BYTES
    assert await large.get(key(20), 2.0) == value(b"abc")


async def test_a_change_that_was_interrupted_empties_the_store(file: int) -> None:
    first, second = shared(file), shared(file)
    await first.put(key(1), value(b"abc"))
    await first.invalidate("a")
    first._head[shared_store._CHANGING] = 1
    assert await second.get(key(1), 2.0) is None
    assert second.usage().entries == 0
    assert second.epoch("a") == 1
    assert await first.put(key(2), value(b"abc"))
    assert await second.get(key(2), 2.0) == value(b"abc")


async def test_an_interrupted_clear_leaves_no_value(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shared(file), shared(file)
    await first.put(key(1), value(b"abc"))
    with monkeypatch.context() as patched:
        patched.setattr(shared_store, "memoryview", lambda *_: 1 // 0, raising=False)
        with pytest.raises(ZeroDivisionError):
            first.set_max_bytes(0)
    assert await second.get(key(1), 2.0) is None
    assert second._head[shared_store._CHANGING] == 0


async def test_an_error_in_a_change_empties_the_store(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared(file)
    await store.put(key(1), value(b"abc"))
    with monkeypatch.context() as patched:
        patched.setattr(store, "_write", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await store.put(key(2), value(b"abc"))
    assert await store.get(key(1), 2.0) is None
    assert await store.put(key(1), value(b"abc"))


async def test_long_values_are_copied_in_a_thread(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared(file, 8 * MAX_BYTES_ON_LOOP)
    to_thread = AsyncMock(wraps=asyncio.to_thread)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    for size, in_thread in ((MAX_BYTES_ON_LOOP, 0), (MAX_BYTES_ON_LOOP + 1, 2)):
        await store.put(key(size), value(b"x" * size))
        assert await store.get(key(size), 2.0) == value(b"x" * size)
        assert to_thread.await_count == in_thread


WRITER = """
import asyncio, sys
sys.path[:0] = [sys.argv[2]]
from infergate.caching.shared_store import SharedStore
from infergate.caching.store import StoredValue
store = SharedStore(int(sys.argv[1]))
store.set_max_bytes(64 * 4096)
async def run():
    number = 0
    while True:
        number += 1
        data = bytes([number % 251]) * (4096 * (1 + number % 9))
        await store.put((number % 10).to_bytes(32), StoredValue(data, 1.0, 1e9))
        if number == 200:
            print("!", flush=True)
asyncio.run(run())
"""


def test_killed_writers_never_corrupt_a_value(file: int) -> None:
    source = str(Path(infergate.__file__).parents[1])
    store = shared(file)

    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), source],
            stdout=subprocess.PIPE, pass_fds=(file,),
        )
        for _ in range(2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"!\n"
    hits = 0
    for number in range(100):
        stored = asyncio.run(store.get(key(number % 10), 2.0))
        if stored is not None:
            hits += 1
            assert len(stored.value) % BLOCK_BYTES == 0
            assert len(set(stored.value)) == 1
    assert hits
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    for number in range(10):  # the store is consistent, and can be filled again
        assert asyncio.run(store.put(key(number), value(bytes([number]) * 4 * BLOCK_BYTES)))
    for number in range(10):
        assert asyncio.run(store.get(key(number), 2.0)) == value(bytes([number]) * 4 * BLOCK_BYTES)


async def test_the_lock_is_held_until_the_end_of_a_change(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change maps the blocks. Closing the previous maps must not release the lock."""
    store = shared(file)
    lock_program = (
        "import fcntl, sys\n"
        "try:\n"
        "    fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError:\n"
        "    sys.exit('locked')\n"
    )
    outcomes = []
    link = SharedStore._link_newest

    def try_to_lock_and_link(store: SharedStore, entry: int) -> None:
        other = subprocess.run(
            [sys.executable, "-c", lock_program, str(file)],
            pass_fds=[file],
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes.append(other.stderr.strip())
        link(store, entry)

    monkeypatch.setattr(SharedStore, "_link_newest", try_to_lock_and_link)
    for number in range(2):
        assert await store.put(key(number), value(b"abc"))
    larger = shared(file, 4 * SIZE)
    assert await larger.put(key(2), value(b"x" * 2 * SIZE))
    assert await store.get(key(2), 2.0) is not None  # maps the blocks of the larger store
    assert outcomes == ["locked"] * 4
