"""Who is served, who waits and who is refused."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from infergate.routing.concurrency import ConcurrencyLimit
from searching import examples


def test_as_many_as_there_are_places() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(2, 1)
    assert [places.try_acquire() for _ in range(3)] == [True, True, False]
    assert places.enqueue("a", None)
    assert not places.enqueue("b", None)
    assert (places.active, places.waiting) == (2, 1)


def test_first_come_first_served() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    assert places.try_acquire()
    for who in "abc":
        assert places.enqueue(who, None)
    assert [places.release(0.0) for _ in range(4)] == ["a", "b", "c", None]
    assert places.active == 0


def test_nobody_passes_those_who_wait() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(2, 9)
    places.try_acquire()
    places.try_acquire()
    places.enqueue("a", None)
    places.release(0.0)
    assert not places.try_acquire()


def test_who_waited_too_long_is_not_called() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(1, 9)
    places.try_acquire()
    places.enqueue("late", 1.0)
    places.enqueue("good", 3.0)
    assert places.release(now=1.0) == "good"
    assert places.waiting == 0


def test_who_gives_up_leaves_room_for_another() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(1, 1)
    places.try_acquire()
    places.enqueue("a", None)
    places.remove("a")
    places.remove("a")
    assert places.enqueue("b", None)
    assert places.release(0.0) == "b"


def test_a_queue_of_no_length_refuses_at_once() -> None:
    places: ConcurrencyLimit[str] = ConcurrencyLimit(1, 0)
    assert places.try_acquire()
    assert not places.enqueue("a", None)


class Kept(RuleBasedStateMachine):
    """Any order of what can happen, beside the plainest model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.places: ConcurrencyLimit[int] = ConcurrencyLimit(3, 4)
        self.now = 0.0
        self.served = 0
        self.line: deque[tuple[int, float]] = deque()
        self.number = 0

    @rule(patience=st.floats(0, 5))
    def come(self, patience: float) -> None:
        self.number += 1
        if self.places.try_acquire():
            assert self.served < 3
            assert not self.line
            self.served += 1
        elif self.places.enqueue(self.number, self.now + patience):
            assert len(self.line) < 4
            self.line.append((self.number, self.now + patience))
        else:
            assert len(self.line) == 4

    @rule()
    def leave(self) -> None:
        if not self.served:
            return
        while self.line and self.line[0][1] <= self.now:
            self.line.popleft()
        expected = self.line.popleft()[0] if self.line else None
        assert self.places.release(self.now) == expected
        self.served -= expected is None

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.line:
            gone = data.draw(st.sampled_from(list(self.line)))
            self.line.remove(gone)
            self.places.remove(gone[0])

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def it_is_as_the_model_has_it(self) -> None:
        assert self.places.active == self.served <= 3
        assert self.places.waiting == len(self.line) <= 4


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=examples(50), stateful_step_count=30)


@settings(max_examples=examples(10))
@given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 2**32))
def test_a_simulation_of_too_many(most: int, most_waiting: int, seed: int) -> None:
    """Five hundred come within ten seconds, each is served for up to a second and waits for up to
    two: everyone is served, gives up or is refused, and no place is lost."""
    chance = random.Random(seed)
    places: ConcurrencyLimit[int] = ConcurrencyLimit(most, most_waiting)
    came = sorted(chance.uniform(0, 10) for _ in range(500))
    events = [(at, "comes", number) for number, at in enumerate(came)]
    outcomes: dict[int, str] = {}

    def serve(now: float, who: int) -> None:
        outcomes[who] = "served"
        events.append((now + chance.random(), "leaves", who))

    while events:
        event = min(events)
        events.remove(event)
        now, what, who = event
        if what == "comes":
            if places.try_acquire():
                serve(now, who)
            elif places.enqueue(who, now + 2):
                events.append((now + 2, "gives up", who))
            else:
                outcomes[who] = "refused"
        elif what == "leaves":
            called = places.release(now)
            if called is not None:
                serve(now, called)
        elif who not in outcomes:
            places.remove(who)
            outcomes[who] = "gave up"
        assert places.active <= most
        assert places.waiting <= most_waiting
    assert len(outcomes) == 500
    assert (places.active, places.waiting) == (0, 0)
