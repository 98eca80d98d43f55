"""Rate buckets that several processes share: exact counts, and eviction from a full table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import infergate
from infergate.access.rate_limits import BucketCharge, LocalBuckets
from infergate.access.shared_rates import _ROW_COUNT, _SLOTS_PER_ROW, SharedBuckets

CHARGES = st.lists(
    st.builds(BucketCharge, st.sampled_from("abc"), st.floats(0, 3), st.floats(1, 5)), max_size=3
)
FILLER = """
import sys
sys.path[:0] = [sys.argv[2]]
from infergate.access.rate_limits import BucketCharge
from infergate.access.shared_rates import SharedBuckets
buckets = SharedBuckets(int(sys.argv[1]), b"")
charges = [BucketCharge("a", 1.0, 10000.0), BucketCharge("b", 1.0, 1e9)]
print("!", flush=True)
sys.stdin.read(1)
print(sum(buckets.fill(charges, 0.0) is None for _ in range(10000)))
"""


@pytest.fixture
def file() -> Iterator[int]:
    fd = SharedBuckets.create_file()
    yield fd
    os.close(fd)


@given(st.lists(st.tuples(st.floats(0, 2), CHARGES), max_size=40))
def test_counts_equal_those_in_memory(steps: list[tuple[float, list[BucketCharge]]]) -> None:
    fd = SharedBuckets.create_file()
    shared, memory, now = SharedBuckets(fd, b""), LocalBuckets(), 1000.0
    for step, charges in steps:
        now += step
        assert shared.fill(charges, now) == memory.fill(charges, now)
    os.close(fd)


def test_instances_with_equal_rates_share_counts(file: int) -> None:
    first, second, other = (SharedBuckets(file, rates) for rates in (b"1", b"1", b"2"))
    charges = [BucketCharge("a", 1.0, 2.0)]
    assert first.fill(charges, 10.0) is None
    assert second.fill(charges, 10.0) is None
    assert first.fill(charges, 10.0) == second.fill(charges, 10.0) == (0, 1.0)
    assert other.fill(charges, 10.0) is None


def test_concurrent_counts_of_several_processes_are_exact(file: int) -> None:
    source = str(Path(infergate.__file__).parents[1])
    fillers = [
        subprocess.Popen(
            [sys.executable, "-c", FILLER, str(file), source],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file,),
        )
        for _ in range(2)
    ]  # fmt: skip
    for each in fillers:
        assert each.stdout is not None
        assert each.stdout.readline() == b"!\n"
    for each in fillers:
        assert each.stdin is not None
        each.stdin.write(b"!")
        each.stdin.flush()
    passed = [int(each.communicate()[0]) for each in fillers]
    assert sum(passed) == 10_000, passed


def test_a_full_table_evicts_the_bucket_that_empties_soonest(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = SharedBuckets(file, b"")
    # All buckets are in the last row of the table.
    monkeypatch.setattr(SharedBuckets, "_hash", lambda _, name: int(name) * _ROW_COUNT - 1)

    def fill(name: int, cost: float) -> bool:
        return buckets.fill([BucketCharge(str(name), cost, 20.0)], 5.0) is None

    assert all(fill(1 + each, 10.0 + each % 7) for each in range(_SLOTS_PER_ROW))
    assert not fill(1, 20.0)
    assert fill(100, 19.0)
    assert not fill(100, 19.0)
    evicted = [
        name for name in range(1, _SLOTS_PER_ROW + 1) if fill(name, 0.0) and fill(name, 20.0)
    ]
    assert evicted[0] == 1
