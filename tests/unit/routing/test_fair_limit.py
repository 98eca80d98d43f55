"""The fair concurrency limit: active, waiting and rejected requests."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from infergate.routing.concurrency import ConcurrencyLimit
from searching import examples


def test_active_and_waiting_requests_are_limited() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(2, 1)
    assert [limit.try_acquire() for _ in range(3)] == [True, True, False]
    assert limit.enqueue("a", None)
    assert not limit.enqueue("b", None)
    assert (limit.active, limit.waiting) == (2, 1)


def test_waiters_are_served_in_order() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    assert limit.try_acquire()
    for request in "abc":
        assert limit.enqueue(request, None)
    assert [limit.release(0.0) for _ in range(4)] == ["a", "b", "c", None]
    assert limit.active == 0


def test_new_requests_do_not_overtake_waiters() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(2, 9)
    limit.try_acquire()
    limit.try_acquire()
    limit.enqueue("a", None)
    limit.release(0.0)
    assert not limit.try_acquire()


def test_expired_waiters_get_no_slot() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    limit.try_acquire()
    limit.enqueue("late", 1.0)
    limit.enqueue("good", 3.0)
    assert limit.release(now=1.0) == "good"
    assert limit.waiting == 0


def test_a_cancelled_waiter_frees_its_queue_entry() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 1)
    limit.try_acquire()
    limit.enqueue("a", None)
    limit.remove("a")
    limit.remove("a")
    assert limit.enqueue("b", None)
    assert limit.release(0.0) == "b"


def test_a_queue_of_length_zero_rejects_immediately() -> None:
    limit: ConcurrencyLimit[str] = ConcurrencyLimit(1, 0)
    assert limit.try_acquire()
    assert not limit.enqueue("a", None)


class LimitStateMachine(RuleBasedStateMachine):
    """Any order of events gives the same result as a simple reference model."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: ConcurrencyLimit[int] = ConcurrencyLimit(3, 4)
        self.now = 0.0
        self.handled = 0
        self.queue: deque[tuple[int, float]] = deque()
        self.number = 0

    @rule(patience=st.floats(0, 5))
    def arrive(self, patience: float) -> None:
        self.number += 1
        if self.limit.try_acquire():
            assert self.handled < 3
            assert not self.queue
            self.handled += 1
        elif self.limit.enqueue(self.number, self.now + patience):
            assert len(self.queue) < 4
            self.queue.append((self.number, self.now + patience))
        else:
            assert len(self.queue) == 4

    @rule()
    def leave(self) -> None:
        if not self.handled:
            return
        while self.queue and self.queue[0][1] <= self.now:
            self.queue.popleft()
        expected = self.queue.popleft()[0] if self.queue else None
        assert self.limit.release(self.now) == expected
        self.handled -= expected is None

    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        if self.queue:
            expired = data.draw(st.sampled_from(list(self.queue)))
            self.queue.remove(expired)
            self.limit.remove(expired[0])

    @rule(seconds=st.floats(0, 3))
    def advance_clock(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def matches_the_reference(self) -> None:
        assert self.limit.active == self.handled <= 3
        assert self.limit.waiting == len(self.queue) <= 4


TestLimitStateMachine = LimitStateMachine.TestCase
TestLimitStateMachine.settings = settings(max_examples=examples(50), stateful_step_count=30)


@settings(max_examples=examples(10))
@given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 2**32))
def test_a_simulated_overload(maximum: int, max_waiting: int, seed: int) -> None:
    """Five hundred requests arrive within ten seconds; each takes up to a second and waits for up
    to two. Every request is served, times out or is rejected, and no slot is lost."""
    chance = random.Random(seed)
    limit: ConcurrencyLimit[int] = ConcurrencyLimit(maximum, max_waiting)
    arrivals = sorted(chance.uniform(0, 10) for _ in range(500))
    events = [(at, "arrival", number) for number, at in enumerate(arrivals)]
    outcomes: dict[int, str] = {}

    def serve(now: float, request: int) -> None:
        outcomes[request] = "served"
        events.append((now + chance.random(), "completion", request))

    while events:
        event = min(events)
        events.remove(event)
        now, kind, request = event
        if kind == "arrival":
            if limit.try_acquire():
                serve(now, request)
            elif limit.enqueue(request, now + 2):
                events.append((now + 2, "timeout", request))
            else:
                outcomes[request] = "rejected"
        elif kind == "completion":
            waiter = limit.release(now)
            if waiter is not None:
                serve(now, waiter)
        elif request not in outcomes:
            limit.remove(request)
            outcomes[request] = "timed out"
        assert limit.active <= maximum
        assert limit.waiting <= max_waiting
    assert len(outcomes) == 500
    assert (limit.active, limit.waiting) == (0, 0)
