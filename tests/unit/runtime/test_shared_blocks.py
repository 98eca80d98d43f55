"""Memory that processes share: lent, taken back, and given back to the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infergate.core.limits import KIB, MIB
from infergate.runtime.aside.mapped import LONG, SPACE, Mapped
from infergate.runtime.aside.shared import Shared
from infergate.transport import rooms


def taken(fd: int) -> int:
    """Bytes of the file that have memory."""
    return os.fstat(fd).st_blocks * 512


async def test_what_one_writes_the_other_reads() -> None:
    made = Shared()
    view = made.filled(MIB)
    view[:5] = b"hello"
    place = made.mapped.place(view)
    assert place is not None
    other = Mapped(os.dup(made.mapped.fd))
    assert bytes(other.view(place, 5)) == b"hello"
    assert made.mapped.place(view[7:]) == place + 7
    assert (made.mapped.place(bytes(MIB)), other.place(view)) == (None, None)


async def test_a_file_takes_memory_only_where_it_is_used() -> None:
    made = Shared()
    fd = made.mapped.fd
    assert (os.fstat(fd).st_size, taken(fd)) == (SPACE, 0)
    view = made.filled(300 * KIB)
    assert taken(fd) == 300 * KIB
    assert len(made.room(100 * MIB)) == 100 * MIB  # which nobody fills
    assert taken(fd) == 300 * KIB
    del view
    assert made.kept == 300 * KIB
    again = made.filled(400 * KIB)
    assert taken(fd) == 400 * KIB
    assert made.mapped.place(again) == 0


async def test_what_nobody_uses_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Shared()
    view = made.filled(MIB)
    view[:] = b"x" * MIB
    del view
    made.let_go()
    assert taken(made.mapped.fd) == made.kept == MIB
    monkeypatch.setattr(rooms, "IDLE", -1.0)
    made.let_go()
    assert taken(made.mapped.fd) == made.kept == 0
    again = made.filled(MIB)
    assert (made.mapped.place(again), bytes(again)) == (0, bytes(MIB))


async def test_no_more_is_kept_than_may_be() -> None:
    made = Shared(2 * MIB)
    lent = [made.filled(MIB) for _ in range(4)]
    assert len({made.mapped.place(each) for each in lent}) == 4
    lent.clear()
    assert taken(made.mapped.fd) == made.kept == 2 * MIB


def test_what_comes_back_outside_a_loop_is_given_back() -> None:
    made = Shared()
    made.filled(MIB)
    assert taken(made.mapped.fd) == made.kept == 0
    assert made.mapped.place(made.filled(MIB)) == 0


async def test_short_bodies_are_the_c_librarys() -> None:
    made = Shared()
    assert made.mapped.place(made.filled(256 * KIB)) == 0
    assert made.mapped.place(made.received(256 * KIB - 1)) is None
    assert made.mapped.place(made.received(256 * KIB)) == 0
    assert made.mapped.place(made.filled(LONG - 1)) is None


async def test_what_is_only_announced_takes_no_new_memory() -> None:
    made = Shared()
    made.filled(300 * KIB)
    lent = [made.received(500 * KIB) for _ in range(10)]
    assert [made.mapped.place(each) for each in lent] == [0, *[None] * 9]
    assert taken(made.mapped.fd) == 500 * KIB


async def test_where_the_system_has_no_room_bodies_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Shared()
    made.filled(600 * KIB)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert made.mapped.place(made.received(MIB)) is None
        with pytest.raises(OSError, match="no room"):
            made.filled(MIB)
    assert made.mapped.place(made.received(MIB)) == 0


async def test_where_the_file_is_full_bodies_go_elsewhere() -> None:
    made = Shared()
    lent = [made.room(SPACE // 4) for _ in range(4)]
    assert all(made.mapped.place(each) is not None for each in lent)
    view = made.filled(MIB)
    assert made.mapped.place(view) is None
    view[:] = bytes(MIB)
    lent.pop()
    assert made.mapped.place(made.filled(SPACE // 8 + 1)) is not None


def test_its_file_is_nobody_elses() -> None:
    made = Shared()
    assert "memfd:infergate-aside" in str(Path(f"/proc/self/fd/{made.mapped.fd}").readlink())
    assert not os.get_inheritable(made.mapped.fd)
