"""The queue of helper processes: bounded, fair between clients, in order within a connection."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.core.limits import KIB, MIB
from infergate.runtime.offload.fairness import MAX_COST, MAX_WAITING, FairQueue

Job = tuple[str, str, int, int]  # client, connection, cost, number


def _queue(maximum: int = MAX_WAITING, cost: int = MAX_COST) -> FairQueue[Job]:
    return FairQueue[Job](maximum, cost)


def _enqueue(queue: FairQueue[Job], job: Job) -> bool:
    return job not in queue.put(job[0], job[1], job[2], job)


def _take_all(queue: FairQueue[Job]) -> list[Job]:
    return list(iter(queue.take, None))


_JOBS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["1", "2"]), st.integers(0, 100), st.booleans()
    ),
    max_size=60,
)


@given(_JOBS, st.integers(1, 20), st.integers(1, 500))
def test_limits_and_order_hold_and_no_job_is_lost(
    requested: list[tuple[str, str, int, bool]], maximum: int, max_cost: int
) -> None:
    queue = _queue(maximum, max_cost)
    waiting: dict[Job, None] = {}
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, (client, connection, cost, take_next) in enumerate(requested):
        job = client, connection, cost, number
        waiting[job] = None
        for refused in queue.put(client, connection, cost, job):
            assert refused[0] == client
            assert refused is job or refused[1] != connection
            assert refused[3] == max(each[3] for each in waiting if each[:2] == refused[:2])
            del waiting[refused]
        assert len(queue) == len(waiting) <= maximum
        assert sum(max(each[2], 1) for each in waiting) <= max_cost
        if take_next and (found := queue.take()) is not None:
            del waiting[found]
            taken[found[:2]].append(found[3])
    for found in _take_all(queue):
        del waiting[found]
        taken[found[:2]].append(found[3])
    assert not waiting
    assert not len(queue)
    assert all(numbers == sorted(numbers) for numbers in taken.values())


@given(_JOBS, st.data())
def test_a_discarded_job_does_not_affect_the_others(
    requested: list[tuple[str, str, int, bool]], data: st.DataObject
) -> None:
    jobs = [(*each[:3], number) for number, each in enumerate(requested)]
    discarded = data.draw(st.sets(st.sampled_from(jobs))) if jobs else set()
    one, other = _queue(), _queue()
    for job in jobs:
        assert _enqueue(one, job)
        if job not in discarded:
            assert _enqueue(other, job)
    for job in discarded:
        one.discard(job[0], job[1], job)
        one.discard(job[0], job[1], job)
    assert len(one) == len(other)
    assert sorted(_take_all(one)) == sorted(_take_all(other))
    assert not one._root.flows


@given(st.integers(1, 200), st.integers(1, 5))
def test_no_job_starves(cost: int, others: int) -> None:
    """The number of jobs that overtake a job is bounded by its cost and the number of clients."""
    queue, overtaking, number = _queue(), 0, 0
    large = ("victim", "1", cost, 0)
    assert _enqueue(queue, large)
    idle_clients = [f"other{each}" for each in range(others)]
    while True:
        for name in idle_clients:
            number += 1
            assert _enqueue(queue, (name, str(number), 1, number))
        job = queue.take()
        assert job is not None
        if job == large:
            break
        idle_clients = [job[0]]
        overtaking += 1
        assert overtaking <= (cost + 1) * (others + 1)


@pytest.mark.parametrize(("client", "connection"), [("good", "1"), ("bad", "good")])
def test_a_small_job_overtakes_the_large_ones_of_others(client: str, connection: str) -> None:
    queue = _queue()
    for number in range(25):
        assert _enqueue(queue, ("bad", str(number), 16 * MIB, number))
    assert None not in [queue.take() for _ in range(5)]
    good = (client, connection, 400 * KIB, 99)
    assert _enqueue(queue, good)
    assert queue.take() == good


def test_scheduling_is_fair_between_clients_not_connections() -> None:
    queue = _queue()
    for number in range(40):
        assert _enqueue(queue, ("many", str(number), 10, number))
    for number in range(40, 50):
        assert _enqueue(queue, ("one", "1", 10, number))
    first = [job[0] for job in _take_all(queue)[:20]]
    assert first.count("one") == 10


def test_a_client_leaves_capacity_for_others() -> None:
    queue = _queue(100, 1000)
    assert sum(_enqueue(queue, ("a", str(n), 1, n)) for n in range(100)) == 50
    assert sum(_enqueue(queue, ("b", str(n), 1, n)) for n in range(100)) == 25
    assert _enqueue(queue, ("c", "1", 1, 1))
    queue = _queue(100, 1000)
    assert sum(_enqueue(queue, ("a", "1", 10, n)) for n in range(100)) == 34
    assert sum(_enqueue(queue, ("a", "2", 10, n)) for n in range(100)) > 0
    assert not _enqueue(queue, ("b", "1", 1000, 1))


@pytest.mark.parametrize(
    ("connections", "jobs", "cost"), [(60, 1, 16 * MIB), (8, 400, MIB), (600, 1, 700 * KIB)]
)
def test_small_jobs_run_concurrently_with_large_ones(
    connections: int, jobs: int, cost: int
) -> None:
    """Either the bytes or the number of jobs fill the client's share."""
    queue = _queue()
    for number in range(connections * jobs):
        _enqueue(queue, ("nat", f"bad{number % connections}", cost, number))
    waiting, good = len(queue), ("nat", "good", 400 * KIB, -1)
    assert _enqueue(queue, good)
    assert len(queue) in {waiting, waiting + 1}
    assert not _enqueue(queue, ("nat", "bad", 512 * MIB, -2))
    assert good in _take_all(queue)


@given(st.lists(st.tuples(st.sampled_from("1234"), st.integers(1, 50)), max_size=40))
def test_the_connection_with_the_highest_cost_is_refused(
    requested: list[tuple[str, int]],
) -> None:
    queue = _queue(1000, 200)
    costs: dict[str, int] = defaultdict(int)
    for number, (connection, cost) in enumerate(requested):
        job = "a", connection, cost, number
        before = dict(costs)
        costs[connection] += cost
        for refused in queue.put(*job[:3], job):
            costs[refused[1]] -= refused[2]
            if refused is job:
                assert max(before.values(), default=0) <= costs[connection] + cost


def test_jobs_over_the_available_cost_wait() -> None:
    queue = _queue()
    for job in (("a", "1", 50, 1), ("a", "2", 5, 2), ("b", "1", 60, 3), ("b", "1", 1, 4)):
        assert _enqueue(queue, job)
    assert queue.take(10) == ("a", "2", 5, 2)
    assert queue.take(10) is None
    assert [job[3] for job in _take_all(queue)] == [1, 3, 4]
    assert queue.take(math.inf) is None
