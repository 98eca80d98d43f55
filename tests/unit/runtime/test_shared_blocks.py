"""Memory that processes share: lent, taken back, and given back to the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infergate.core.limits import KIB, MIB
from infergate.runtime.offload.mapped_file import FILE_BYTES, MIN_SHARED_BYTES, MappedFile
from infergate.runtime.offload.shared_buffer import SharedBuffer
from infergate.transport.net import buffer_pool


def taken(fd: int) -> int:
    """Bytes of the file that have memory."""
    return os.fstat(fd).st_blocks * 512


async def test_what_one_writes_the_other_reads() -> None:
    made = SharedBuffer()
    view = made.allocate_resident(MIB)
    view[:5] = b"hello"
    place = made.mapped.offset_of(view)
    assert place is not None
    other = MappedFile(os.dup(made.mapped.fd))
    assert bytes(other.view(place, 5)) == b"hello"
    assert made.mapped.offset_of(view[7:]) == place + 7
    assert (made.mapped.offset_of(bytes(MIB)), other.offset_of(view)) == (None, None)


async def test_a_file_takes_memory_only_where_it_is_used() -> None:
    made = SharedBuffer()
    fd = made.mapped.fd
    assert (os.fstat(fd).st_size, taken(fd)) == (FILE_BYTES, 0)
    view = made.allocate_resident(300 * KIB)
    assert taken(fd) == 300 * KIB
    assert len(made.allocate(100 * MIB)) == 100 * MIB  # which nobody fills
    assert taken(fd) == 300 * KIB
    del view
    assert made.unused_bytes == 300 * KIB
    again = made.allocate_resident(400 * KIB)
    assert taken(fd) == 400 * KIB
    assert made.mapped.offset_of(again) == 0


async def test_what_nobody_uses_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SharedBuffer()
    view = made.allocate_resident(MIB)
    view[:] = b"x" * MIB
    del view
    made.drop_idle()
    assert taken(made.mapped.fd) == made.unused_bytes == MIB
    monkeypatch.setattr(buffer_pool, "IDLE_SECONDS", -1.0)
    made.drop_idle()
    assert taken(made.mapped.fd) == made.unused_bytes == 0
    again = made.allocate_resident(MIB)
    assert (made.mapped.offset_of(again), bytes(again)) == (0, bytes(MIB))


async def test_no_more_is_kept_than_may_be() -> None:
    made = SharedBuffer(2 * MIB)
    lent = [made.allocate_resident(MIB) for _ in range(4)]
    assert len({made.mapped.offset_of(each) for each in lent}) == 4
    lent.clear()
    assert taken(made.mapped.fd) == made.unused_bytes == 2 * MIB


def test_what_comes_back_outside_a_loop_is_given_back() -> None:
    made = SharedBuffer()
    made.allocate_resident(MIB)
    assert taken(made.mapped.fd) == made.unused_bytes == 0
    assert made.mapped.offset_of(made.allocate_resident(MIB)) == 0


async def test_short_bodies_are_the_c_librarys() -> None:
    made = SharedBuffer()
    assert made.mapped.offset_of(made.allocate_resident(256 * KIB)) == 0
    assert made.mapped.offset_of(made.receive_buffer(256 * KIB - 1)) is None
    assert made.mapped.offset_of(made.receive_buffer(256 * KIB)) == 0
    assert made.mapped.offset_of(made.allocate_resident(MIN_SHARED_BYTES - 1)) is None


async def test_what_is_only_announced_takes_no_new_memory() -> None:
    made = SharedBuffer()
    made.allocate_resident(300 * KIB)
    lent = [made.receive_buffer(500 * KIB) for _ in range(10)]
    assert [made.mapped.offset_of(each) for each in lent] == [0, *[None] * 9]
    assert taken(made.mapped.fd) == 500 * KIB


async def test_where_the_system_has_no_room_bodies_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SharedBuffer()
    made.allocate_resident(600 * KIB)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert made.mapped.offset_of(made.receive_buffer(MIB)) is None
        with pytest.raises(OSError, match="no room"):
            made.allocate_resident(MIB)
    assert made.mapped.offset_of(made.receive_buffer(MIB)) == 0


async def test_where_the_file_is_full_bodies_go_elsewhere() -> None:
    made = SharedBuffer()
    lent = [made.allocate(FILE_BYTES // 4) for _ in range(4)]
    assert all(made.mapped.offset_of(each) is not None for each in lent)
    view = made.allocate_resident(MIB)
    assert made.mapped.offset_of(view) is None
    view[:] = bytes(MIB)
    lent.pop()
    assert made.mapped.offset_of(made.allocate_resident(FILE_BYTES // 8 + 1)) is not None


def test_its_file_is_nobody_elses() -> None:
    made = SharedBuffer()
    assert "memfd:infergate-aside" in str(Path(f"/proc/self/fd/{made.mapped.fd}").readlink())
    assert not os.get_inheritable(made.mapped.fd)
