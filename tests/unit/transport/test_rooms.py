"""Memory for long bodies: given out, taken back, and let go."""

from __future__ import annotations

import numpy as np
import pytest
from transport_kit import until

from infergate.core.limits import MIB
from infergate.transport import rooms
from infergate.transport.rooms import LEAST, MOST, Rooms


def place(room: memoryview) -> int:
    """Where it lies."""
    return int(np.frombuffer(room, np.uint8).ctypes.data)


async def test_what_nobody_uses_is_given_out_again() -> None:
    made = Rooms()
    first, other = made.room(50 * MIB), made.room(40 * MIB)
    assert (len(first), len(other), made.kept) == (50 * MIB, 40 * MIB, 0)
    where = place(first)
    part = first[5:10]
    part[:] = b"hello"
    del first
    third = made.room(50 * MIB)
    third[5:10] = b"other"
    assert (made.kept, bytes(part)) == (0, b"hello")
    del part
    assert made.kept == 50 * MIB
    again = made.room(45 * MIB)
    assert (len(again), place(again), made.kept) == (45 * MIB, where, 0)
    del again, third, other
    assert made.kept == 140 * MIB


async def test_no_more_than_twice_of_what_was_asked_for_is_given_out() -> None:
    made = Rooms()
    made.room(100 * MIB)
    for size in (49 * MIB, 101 * MIB):
        other = made.room(size)
        assert made.kept >= 100 * MIB
        del other
    assert made.kept == 250 * MIB
    room = made.room(50 * MIB)
    assert made.kept == 150 * MIB
    del room


async def test_only_so_much_is_kept() -> None:
    made = Rooms()
    lent = [made.room(200 * MIB) for _ in range(5)]
    assert made.kept == 0
    lent.clear()
    assert made.kept == 600 * MIB
    made.room(MOST + 1)
    assert made.kept == 0


async def test_the_operator_may_want_less() -> None:
    made = Rooms()
    made.most = 90 * MIB
    made.room(100 * MIB)
    assert made.kept == 0
    made.room(50 * MIB)
    assert made.kept == 50 * MIB


def test_no_more_is_kept_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms.ROOMS, "most", MOST)
    for size, most in ((100 * MIB, 100 * MIB), (2 * MOST, MOST)):
        rooms.keep_at_most(size)
        assert rooms.ROOMS.most == most


async def test_short_ones_are_the_c_librarys() -> None:
    made = Rooms()
    assert len(made.room(LEAST - 1)) == LEAST - 1
    assert made.kept == 0
    made.room(LEAST)
    assert made.kept == LEAST


async def test_a_gateway_at_rest_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "IDLE", 0.05)
    made = Rooms()
    made.room(100 * MIB)
    assert made.kept == 100 * MIB
    await until(lambda: made.kept == 0)


async def test_what_is_used_meanwhile_is_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(rooms.time, "monotonic", lambda: now)
    made = Rooms()
    first, second = made.room(100 * MIB), made.room(50 * MIB)
    del first, second
    now += 29
    made.room(100 * MIB)
    now += 2
    made.let_go()
    assert made.kept == 100 * MIB
    now += 30
    made.let_go()
    assert made.kept == 0


def test_nothing_is_kept_where_no_loop_runs() -> None:
    made = Rooms()
    made.room(100 * MIB)
    assert made.kept == 0
