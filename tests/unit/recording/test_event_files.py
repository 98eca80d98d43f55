"""Files of events: they are private, rotated and bounded, and have only complete lines, even
after a failed write."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infergate.recording.cloud_events import CloudEvent
from infergate.recording.event_files import EventFiles, structured_line
from infergate.recording.payload_log import WireEvent

LINE = 100


def event(letter: str = "x", size: int = LINE) -> WireEvent:
    return {}, (letter * (size - 1)).encode() + b"\n"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events-*.jsonl"), key=lambda file: file.stat().st_mtime_ns)


async def write(sink: EventFiles, *events: WireEvent) -> dict[str, int]:
    return dict(await sink.send(events))


async def test_events_are_lines_in_a_private_file(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    sink = EventFiles(folder, 1000, 10_000)
    assert files(folder) == []  # the file is created with the first event
    assert await write(sink, structured_line(CloudEvent({"id": "1"}, b'{"a":1}')), event()) == {
        "sent": 2
    }
    (file,) = files(folder)
    assert file.read_text().splitlines() == ['{"id":"1","data":{"a":1}}', "x" * (LINE - 1)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await sink.close()


async def test_files_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("kept")
    sink = EventFiles(tmp_path, 3 * LINE, 10 * LINE)
    for letter in "abcdefghijklmnopqrst":
        await write(sink, event(letter))
    texts = [file.read_text() for file in files(tmp_path)]
    assert all(len(text) <= 3 * LINE for text in texts)
    assert sum(map(len, texts)) <= 10 * LINE
    letters = "".join(text[0] for each in texts for text in each.splitlines())
    assert letters == "abcdefghijklmnopqrst"[-len(letters) :]
    assert len(letters) >= 7
    assert other.read_text() == "kept"
    await sink.close()


async def test_a_line_over_the_size_of_a_file_is_not_written(tmp_path: Path) -> None:
    sink = EventFiles(tmp_path, 150, 1000)
    assert await write(sink, event(size=151), event()) == {"too_large": 1, "sent": 1}
    await sink.close()


@pytest.mark.parametrize(("number", "count"), [(errno.ENOSPC, 1), (errno.EIO, 2)])
async def test_a_failed_write_leaves_no_incomplete_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, count: int
) -> None:
    now, os_write = [0.0], os.write
    sink = EventFiles(tmp_path, 1000, 10_000, lambda: now[0])
    await write(sink, event("a"))
    written = 0

    def write_partially(descriptor: int, data: Any) -> int:
        nonlocal written
        if written:
            raise OSError(number, os.strerror(number))
        written = os_write(descriptor, data[:10])
        return written

    monkeypatch.setattr(os, "write", write_partially)
    assert await write(sink, event("b")) == {"failed": 1}
    assert os.strerror(number) in sink.error
    monkeypatch.undo()
    assert files(tmp_path)[0].read_bytes() == event("a")[1]
    now[0] += 10
    assert await write(sink, event("c")) == {"sent": 1}
    contents = [file.read_bytes() for file in sorted(files(tmp_path))]
    # On a full disk, the same file is continued; after another error, a new file is started.
    assert len(contents) == count
    assert b"".join(contents) == event("a")[1] + event("c")[1]
    await sink.close()


async def test_a_full_disk_gets_no_empty_files_and_is_tried_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, opened = [0.0], Mock(side_effect=os.open)
    sink = EventFiles(tmp_path, 1000, 10_000, lambda: now[0])
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opened)
        patched.setattr(os, "write", full)
        for _ in range(100):
            assert await write(sink, event(), event()) == {"failed": 2}
            now[0] += 0.25
    assert opened.call_count == 5, "a file is opened every 5 seconds"
    assert files(tmp_path) == []
    now[0] += 10
    assert await write(sink, event()) == {"sent": 1}
    await sink.close()


async def test_the_name_of_a_file_that_another_process_moved_is_not_used_again(
    tmp_path: Path,
) -> None:
    sink = EventFiles(tmp_path, 1000, 10_000)
    names = []
    for letter in "abc":
        assert await write(sink, event(letter)) == {"sent": 1}
        (file,) = files(tmp_path)
        assert file.read_bytes()[:1] == letter.encode()
        names.append(file.name)
        file.unlink()
    assert len(set(names)) == 3
    await sink.close()


async def test_events_are_not_added_to_a_file_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # process IDs may be equal in two containers
    monkeypatch.setattr(time, "strftime", lambda *_: "20261126T120000Z")
    clock = [0.0]
    first, second, third = (EventFiles(tmp_path, 1000, 10_000, lambda: clock[0]) for _ in range(3))
    await write(first, event("a"))
    assert await write(second, event("b")) == {"failed": 1}
    clock[0] = 60.0
    assert await write(second, event("c")) == {"sent": 1}
    monkeypatch.setattr(os, "getpid", lambda: 2)  # process IDs in one container differ
    assert await write(third, event("d")) == {"sent": 1}
    assert sorted(file.read_bytes()[::LINE] for file in files(tmp_path)) == [b"a", b"c", b"d"]
    await asyncio.gather(first.close(), second.close(), third.close())


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(OSError, match="file"):
        EventFiles(occupied, 1000, 10_000)
