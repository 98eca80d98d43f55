"""A connection's timer on an event loop with a fake clock."""

from collections.abc import Callable
from typing import Any

from infergate.transport.net.timer import CATCH_UP_SECONDS, LATE_SECONDS, Timer


class Alarm:
    def __init__(self, due: float, ring: Callable[[], None]) -> None:
        self.due = due
        self.ring = ring
        self.is_cancelled = False

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A loop whose ``went_to`` calls what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[Alarm] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, ring: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(due, ring))
        return self.alarms[-1]

    def went_to(self, now: float) -> None:
        self.now = now
        due = [each for each in self.alarms if each.due <= now]
        self.alarms = [each for each in self.alarms if each.due > now]
        for each in due:
            if not each.is_cancelled:
                each.ring()


def made() -> tuple[Any, Timer, list[float]]:
    loop: Any = Loop()
    rung: list[float] = []
    return loop, Timer(loop, lambda: rung.append(loop.now)), rung


def test_the_timer_fires_when_due() -> None:
    loop, timer, rung = made()
    timer.set(1.0)
    timer.set(2.0)
    loop.went_to(1.0)
    assert rung == []
    loop.went_to(2.0 + LATE_SECONDS / 2)
    assert rung == [2.0 + LATE_SECONDS / 2]


def test_received_bytes_are_read_before_a_late_timeout() -> None:
    loop, timer, rung = made()
    timer.set(1.0)
    loop.went_to(5.0)
    assert rung == []
    timer.set(1.0)  # received bytes
    loop.went_to(5.0 + CATCH_UP_SECONDS)
    assert rung == []
    loop.went_to(6.0)
    assert rung == [6.0]


def test_an_idle_connection_times_out_one_loop_turn_later() -> None:
    loop, timer, rung = made()
    timer.set(1.0)
    loop.went_to(5.0)
    loop.went_to(9.0)
    assert rung == [9.0]


def test_the_timer_does_not_fire_after_stop_or_close() -> None:
    loop, timer, rung = made()
    timer.set(1.0)
    timer.stop()
    loop.went_to(5.0)
    timer.set(1.0)
    timer.close()
    loop.went_to(9.0)
    assert rung == []
