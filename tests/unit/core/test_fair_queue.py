"""The fair queue is bounded, shares capacity between clients by weight, takes jobs by priority, and
keeps the order of each connection."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.core.fair_queue import FairQueue, QueuedJob
from infergate.core.limits import KIB, MIB
from infergate.core.priorities import DEFAULT_PRIORITY, PRIORITIES
from infergate.runtime.offload.pool import MAX_COST, MAX_WAITING
from searching import examples

Job = QueuedJob[int]


def _queue(maximum: int = MAX_WAITING, cost: float = MAX_COST) -> FairQueue[int]:
    return FairQueue[int](maximum, cost)


def _job(
    client: str, connection: str = "1", cost: int = 1, number: int = 0, **fields: float
) -> Job:
    return QueuedJob(number, client, connection, cost, **fields)


def _enqueue(queue: FairQueue[int], job: Job) -> bool:
    return job not in queue.put(job)


def _take_all(queue: FairQueue[int]) -> list[Job]:
    return list(iter(queue.take, None))


def _assert_empty(queue: FairQueue[int]) -> None:
    assert queue.waiting == 0
    for level in queue._levels.values():
        assert not level.flows
        assert not level.total_weight
        assert (level.count, level.cost) == (0, 0)
        rankings = (level._order, *level._loads.values())
        assert not any(ranking._entries for ranking in rankings)


_JOBS = st.lists(
    st.builds(
        QueuedJob,
        st.booleans(),
        st.sampled_from("abc"),
        st.sampled_from("12"),
        st.integers(1, 100),
        st.sampled_from([0.5, 1.0, 3.0]),
        st.sampled_from([1, 5, 9]),
    ),
    max_size=60,
)


@settings(max_examples=examples(60))
@given(_JOBS, st.integers(0, 20), st.integers(1, 500))
def test_limits_and_order_hold_and_no_job_is_lost(
    jobs: list[QueuedJob[bool]], maximum: int, max_cost: int
) -> None:
    queue = FairQueue[bool](maximum, max_cost)
    waiting: dict[QueuedJob[bool], int] = {}
    order: dict[tuple[str, str, int], list[int]] = defaultdict(list)

    def record(job: QueuedJob[bool]) -> None:
        assert job.priority == min(each.priority for each in waiting)
        order[job.client, job.connection, job.priority].append(waiting.pop(job))

    for number, job in enumerate(jobs):
        waiting[job] = number
        for shed in queue.put(job):
            fits = job.cost <= max_cost and maximum > 0
            assert shed.priority == max(each.priority for each in waiting) or not fits
            assert waiting[shed] == max(
                n for each, n in waiting.items() if _flow(each) == _flow(shed)
            )
            assert shed is job or fits
            del waiting[shed]
        assert queue.waiting == len(waiting) <= maximum
        assert sum(each.cost for each in waiting) <= max_cost
        if job.item and (taken_job := queue.take()) is not None:
            record(taken_job)
    while (taken_job := queue.take()) is not None:
        record(taken_job)
    assert not waiting
    assert queue.waiting == 0
    assert all(numbers == sorted(numbers) for numbers in order.values())


def _flow(job: QueuedJob[bool]) -> tuple[str, str, int]:
    return job.client, job.connection, job.priority


@settings(max_examples=examples(40))
@given(_JOBS, st.data())
def test_a_discarded_job_does_not_affect_the_others(jobs: list[Job], data: st.DataObject) -> None:
    discarded = data.draw(st.sets(st.sampled_from(jobs))) if jobs else set()
    queue = _queue()
    for job in jobs:
        assert _enqueue(queue, job)
    for job in discarded:
        queue.discard(job)
        queue.discard(job)
    assert set(_take_all(queue)) == set(jobs) - discarded
    _assert_empty(queue)
    for job in jobs:
        queue.discard(job)
    _assert_empty(queue)


def test_cancelled_jobs_leave_nothing_behind() -> None:
    """A job that waits while other jobs are added and cancelled keeps its position, and the queue
    stays small."""
    queue = _queue(100)
    lasting = _job("a", priority=9)
    assert _enqueue(queue, lasting)
    others: list[Job] = []
    rng = random.Random(1)
    for number in range(3000):
        job = _job(rng.choice("abc"), rng.choice("12"), 1 + number % 7, priority=9)
        assert not queue.put(job)
        others.append(job)
        if len(others) > 5:
            queue.discard(others.pop(rng.randrange(len(others))))
    level = queue._levels[9]
    assert len(level._order._heap) <= 2 * 3 + 9
    assert sum(len(flow.jobs) for each in level.flows.values() for flow in each.flows.values()) == 6
    for job in others:
        queue.discard(job)
    assert queue.take() is lasting
    _assert_empty(queue)


@settings(max_examples=examples(25))
@given(st.integers(1, 200), st.integers(1, 5))
def test_no_job_starves_within_its_priority(cost: int, others: int) -> None:
    """The number of jobs that overtake a job is bounded by its cost and the number of clients."""
    queue, overtaking = _queue(), 0
    large = _job("victim", "1", cost)
    assert _enqueue(queue, large)
    idle_clients = [f"other{each}" for each in range(others)]
    while True:
        for name in idle_clients:
            assert _enqueue(queue, _job(name, str(overtaking)))
        job = queue.take()
        assert job is not None
        if job is large:
            break
        idle_clients = [job.client]
        overtaking += 1
        assert overtaking <= (cost + 1) * (others + 1)


def test_new_clients_do_not_starve_the_others() -> None:
    queue, rounds = _queue(), 0
    patient = _job("patient", cost=50)
    assert _enqueue(queue, patient)
    while True:
        assert _enqueue(queue, _job(f"new{rounds}"))
        if queue.take() is patient:
            break
        rounds += 1
        assert rounds <= 2 * 51


@pytest.mark.parametrize(("client", "connection"), [("good", "1"), ("bad", "good")])
def test_a_small_job_overtakes_large_jobs_of_other_connections(
    client: str, connection: str
) -> None:
    queue = _queue()
    for number in range(25):
        assert _enqueue(queue, _job("bad", str(number), 16 * MIB))
    assert None not in [queue.take() for _ in range(5)]
    small = _job(client, connection, 400 * KIB)
    assert _enqueue(queue, small)
    assert queue.take() is small


def test_large_jobs_can_be_left_in_the_queue() -> None:
    queue = _queue()
    large, hidden, small = _job("a", "1", 100), _job("a", "1", 1), _job("a", "2", 10)
    for job in (large, hidden, small):
        assert _enqueue(queue, job)
    assert queue.take(50) is small
    assert queue.take(50) is None, "the jobs of a connection keep their order"
    assert _take_all(queue) == [large, hidden]
    assert queue.take(50) is None


def test_scheduling_is_fair_between_clients_not_connections() -> None:
    queue = _queue()
    for number in range(40):
        assert _enqueue(queue, _job("many", str(number), 10))
    for _ in range(10):
        assert _enqueue(queue, _job("one", "1", 10))
    first = [job.client for job in _take_all(queue)[:20]]
    assert first.count("one") == 10


def test_clients_are_served_in_proportion_to_their_weights() -> None:
    queue = _queue(math.inf)
    for weight in (1.0, 2.0, 5.0):
        for number in range(1000):
            assert _enqueue(queue, _job(str(weight), str(number % 30), weight=weight))
    for total in (80, 800):
        counts = Counter(queue.take().client for _ in range(total))  # type: ignore[union-attr]
        for weight in (1.0, 2.0, 5.0):
            assert abs(counts[str(weight)] - total * weight / 8) <= 2


def test_a_changed_weight_applies_to_waiting_jobs() -> None:
    queue = _queue()
    for number in range(50):
        assert _enqueue(queue, _job("a", number=number, weight=1.0))
        assert _enqueue(queue, _job("b", number=number, weight=1.0))
    assert _enqueue(queue, _job("b", weight=4.0))
    counts = Counter(job.client for job in [queue.take() for _ in range(40)] if job)
    assert abs(counts["b"] - 32) <= 1
    _take_all(queue)
    _assert_empty(queue)


def test_higher_priorities_are_taken_first_and_may_starve_lower_ones() -> None:
    queue = _queue()
    low = _job("a", priority=6)
    assert _enqueue(queue, low)
    for _ in range(1000):
        assert _enqueue(queue, _job("b", priority=5))
        job = queue.take()
        assert job is not None
        assert job is not low
    assert queue.take() is low


def test_a_client_alone_may_fill_the_queue_and_others_displace_its_last_jobs() -> None:
    queue = _queue(100, math.inf)
    jobs = [_job("a", number=number) for number in range(101)]
    assert [_enqueue(queue, job) for job in jobs] == [True] * 100 + [False]
    assert list(queue.put(_job("b"))) == [jobs[99]]
    for _ in range(49):
        assert _enqueue(queue, _job("b"))
    assert not _enqueue(queue, _job("b")), "the shares of the clients are equal"
    assert len(queue.put(_job("c"))) == 1
    counts = Counter(job.client for job in _take_all(queue))
    assert sorted(counts.values()) == [1, 49, 50]


def test_the_load_of_a_client_is_relative_to_its_weight() -> None:
    queue = _queue(100, math.inf)
    for _ in range(100):
        assert _enqueue(queue, _job("light"))
    accepted = sum(_enqueue(queue, _job("heavy", weight=3.0)) for _ in range(100))
    assert accepted == 75


def test_a_full_queue_sheds_the_last_jobs_of_the_lowest_priority_first() -> None:
    queue = _queue(6, math.inf)
    few, first, second = (
        _job("few", priority=8),
        _job("many", priority=8),
        _job("many", priority=8),
    )
    jobs = [few, first, second, *(_job("normal") for _ in range(3))]
    assert all(_enqueue(queue, job) for job in jobs)
    assert list(queue.put(_job("x", priority=3))) == [second]
    rejected = _job("x", priority=9)
    assert list(queue.put(rejected)) == [rejected]
    assert {*queue.put(_job("x")), *queue.put(_job("x"))} == {few, first}
    urgent = [_job("x", priority=1) for _ in range(6)]
    shed = [item for job in urgent for item in queue.put(job)]
    assert len(shed) == 6
    assert all(job.priority >= 3 for job in shed)
    assert list(queue.put(rejected)) == [rejected]
    assert _take_all(queue) == urgent


def test_the_connection_with_the_longest_queue_is_displaced_within_a_client() -> None:
    queue = _queue(3, math.inf)
    jobs = [_job("a", "1"), _job("a", "1"), _job("a", "1")]
    assert all(_enqueue(queue, job) for job in jobs)
    assert list(queue.put(_job("a", "2"))) == [jobs[2]]
    rejected = _job("a", "2")
    assert list(queue.put(rejected)) == [rejected]


def test_of_equally_loaded_connections_the_latest_job_is_displaced() -> None:
    queue = _queue(4, math.inf)
    jobs = [_job("a", str(number)) for number in range(4)]
    assert all(_enqueue(queue, job) for job in jobs)
    queue.discard(jobs[3])
    jobs[3] = _job("a", "1")
    assert _enqueue(queue, jobs[3])
    assert list(queue.put(_job("b"))) == [jobs[3]]
    assert list(queue.put(_job("c"))) == [jobs[2]]


@pytest.mark.parametrize(
    ("connections", "jobs", "cost"), [(60, 1, 18 * MIB), (8, 400, MIB), (1100, 1, 700 * KIB)]
)
def test_small_jobs_displace_large_ones_of_the_same_client(
    connections: int, jobs: int, cost: int
) -> None:
    """The parameters fill the queue either by bytes or by number of jobs."""
    queue = _queue()
    for number in range(connections * jobs):
        _enqueue(queue, _job("nat", f"bad{number % connections}", cost))
    waiting, small = queue.waiting, _job("nat", "good", 400 * KIB)
    assert _enqueue(queue, small)
    assert queue.waiting in {waiting, waiting + 1}
    assert not _enqueue(queue, _job("nat", "bad", 900 * MIB))
    assert not _enqueue(queue, _job("other", "1", MAX_COST + 1))


def test_the_number_of_jobs_ahead_is_estimated() -> None:
    queue = _queue(math.inf)
    for number in range(99):
        _enqueue(queue, _job("flood", str(number)))
    assert queue.jobs_before(_job("flood")) == 99
    assert queue.jobs_before(_job("new")) == 1
    assert queue.jobs_before(_job("new", weight=0.5)) == 2
    assert queue.jobs_before(_job("new", priority=4)) == 0
    assert queue.jobs_before(_job("new", priority=6)) == 99
    assert queue.jobs_before(_job("flood", priority=6)) == 99


@pytest.mark.parametrize("clients", [1, 10, 100])
def test_the_estimate_is_the_number_of_jobs_taken_first(clients: int) -> None:
    queue = _queue(math.inf)
    for number in range(300):
        _enqueue(queue, _job(f"c{number % clients}", weight=1.0 + number % clients % 3))
    job = _job("late", weight=2.0)
    expected = queue.jobs_before(job)
    _enqueue(queue, job)
    order = _take_all(queue)
    assert abs(order.index(job) - expected) <= clients


def test_the_default_priority_is_in_the_middle() -> None:
    assert list(PRIORITIES) == list(range(1, 10))
    assert _job("a").priority == DEFAULT_PRIORITY == 5
