"""A connection's timer on an event loop with a fake clock."""

from collections.abc import Callable
from typing import Any

from infergate.transport.net.timer import CATCH_UP_SECONDS, LATE_SECONDS, Timer


class FakeHandle:
    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self.deadline = deadline
        self.callback = callback
        self.is_cancelled = False

    def when(self) -> float:
        return self.deadline

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """An event loop with a clock; ``advance_to`` runs the callbacks that are due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handles: list[FakeHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, deadline: float, callback: Callable[[], None]) -> FakeHandle:
        self.handles.append(FakeHandle(deadline, callback))
        return self.handles[-1]

    def advance_to(self, now: float) -> None:
        self.now = now
        due_handles = [each for each in self.handles if each.deadline <= now]
        self.handles = [each for each in self.handles if each.deadline > now]
        for each in due_handles:
            if not each.is_cancelled:
                each.callback()


def make_timer() -> tuple[Any, Timer, list[float]]:
    loop: Any = FakeLoop()
    timeouts: list[float] = []
    return loop, Timer(loop, lambda: timeouts.append(loop.now)), timeouts


def test_the_timer_fires_when_due() -> None:
    loop, timer, timeouts = make_timer()
    timer.set(1.0)
    timer.set(2.0)
    loop.advance_to(1.0)
    assert timeouts == []
    loop.advance_to(2.0 + LATE_SECONDS / 2)
    assert timeouts == [2.0 + LATE_SECONDS / 2]


def test_received_bytes_are_read_before_a_late_timeout() -> None:
    loop, timer, timeouts = make_timer()
    timer.set(1.0)
    loop.advance_to(5.0)
    assert timeouts == []
    timer.set(1.0)  # bytes were received
    loop.advance_to(5.0 + CATCH_UP_SECONDS)
    assert timeouts == []
    loop.advance_to(6.0)
    assert timeouts == [6.0]


def test_a_late_timer_fires_in_the_next_iteration_of_the_loop() -> None:
    loop, timer, timeouts = make_timer()
    timer.set(1.0)
    loop.advance_to(5.0)
    loop.advance_to(9.0)
    assert timeouts == [9.0]


def test_a_stopped_or_closed_timer_does_not_fire() -> None:
    loop, timer, timeouts = make_timer()
    timer.set(1.0)
    timer.stop()
    loop.advance_to(5.0)
    timer.set(1.0)
    timer.close()
    loop.advance_to(9.0)
    assert timeouts == []
