"""The recording files of a process: rotation, and the limit on their total size."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange_samples import exchange_of
from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.recording import directory as module
from infergate.recording.directory import (
    DirectoryFullError,
    DirectorySettings,
    RecordingDirectory,
)
from infergate.recording.encoding import RecordedExchange, UnrecordableError, encode_exchange
from infergate.recording.format import FILE_HEADER_BYTES
from infergate.recording.reader import read_recording
from infergate.recording.writer import RecordingFile, max_frame_bytes

KIB = 1024


def record(size: int = 1000) -> list[Buffer]:
    return encode_exchange(exchange_of(os.urandom(size)))


def settings(path: Path, **fields: object) -> DirectorySettings:
    return replace(DirectorySettings(path / "records", 10 * KIB, 100 * KIB), **fields)


def files(path: Path) -> list[Path]:
    return sorted((path / "records").iterdir())


def total_file_size(path: Path) -> int:
    return sum(file.stat().st_size for file in files(path))


def count_records(path: Path) -> int:
    parts = [part for file in files(path) for part in read_recording(file)]
    assert all(isinstance(part, RecordedExchange) for part in parts)
    return len(parts)


def write(directory: RecordingDirectory, *record_sizes: int) -> None:
    """Append a record of each size, and complete the file."""
    for size in record_sizes:
        directory.append(record(size))
    directory.close_file()


def fill(directory: RecordingDirectory, size: int = 1000) -> int:
    """Append records until the folder is full, and return their number."""
    count = 0
    while True:
        try:
            directory.append(record(size))
        except DirectoryFullError:
            directory.close_file()
            return count
        count += 1


def test_the_folder_and_its_files_are_only_for_the_owner(tmp_path: Path) -> None:
    directory = RecordingDirectory(settings(tmp_path))
    assert not (tmp_path / "records").exists()
    write(directory, 1000)
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(os.getpid()) in file.name


def test_a_file_is_rotated_at_the_maximum_size(tmp_path: Path) -> None:
    write(RecordingDirectory(settings(tmp_path)), *[1000] * 30)
    assert len(files(tmp_path)) > 2
    assert all(file.stat().st_size <= 10 * KIB for file in files(tmp_path))
    assert count_records(tmp_path) == 30


def test_a_record_over_the_file_size_has_its_own_file(tmp_path: Path) -> None:
    write(RecordingDirectory(settings(tmp_path)), 10, 30_000, 10)
    assert len(files(tmp_path)) == 3
    assert count_records(tmp_path) == 3


def test_a_full_folder_rejects_records_and_keeps_all_files(tmp_path: Path) -> None:
    directory = RecordingDirectory(settings(tmp_path))
    count = fill(directory)
    assert 95 * KIB < total_file_size(tmp_path) <= 100 * KIB
    assert count_records(tmp_path) == count


def test_recording_continues_when_files_were_moved_away(tmp_path: Path) -> None:
    directory = RecordingDirectory(settings(tmp_path))
    fill(directory)
    before = files(tmp_path)
    before[0].rename(tmp_path / "moved")
    assert fill(directory) > 0
    assert set(before[1:]) < set(files(tmp_path))
    assert total_file_size(tmp_path) <= 100 * KIB


def test_removes_oldest_deletes_files_over_the_total_size(tmp_path: Path) -> None:
    directory = RecordingDirectory(settings(tmp_path, removes_oldest=True))
    for _ in range(300):
        directory.append(record())
        directory.flush()
        assert total_file_size(tmp_path) <= 100 * KIB
    directory.close_file()
    assert 70 < count_records(tmp_path) < 100
    names = [file.name for file in files(tmp_path)]
    assert names == sorted(names)


def test_a_record_that_can_never_fit_removes_nothing(tmp_path: Path) -> None:
    directory = RecordingDirectory(settings(tmp_path, removes_oldest=True))
    directory.append(record())
    with pytest.raises(
        UnrecordableError, match="larger than this process's share of the total size"
    ):
        directory.append(record(100 * KIB))
    directory.close_file()
    assert count_records(tmp_path) == 1


def test_workers_share_the_total_size_with_files_of_earlier_workers(tmp_path: Path) -> None:
    alone = RecordingDirectory(settings(tmp_path, worker=3, workers=4))
    fill(alone)
    assert total_file_size(tmp_path) <= 25 * KIB
    for worker in range(2):
        fill(RecordingDirectory(settings(tmp_path, worker=worker, workers=2)))
    assert 90 * KIB < total_file_size(tmp_path) <= 100 * KIB


def test_workers_remove_only_their_own_files(tmp_path: Path) -> None:
    other = RecordingDirectory(settings(tmp_path, worker=1, workers=2))
    fill(other)
    other_files = files(tmp_path)
    directory = RecordingDirectory(settings(tmp_path, worker=0, workers=2, removes_oldest=True))
    write(directory, *[1000] * 100)
    assert set(other_files) < set(files(tmp_path))
    assert total_file_size(tmp_path) <= 100 * KIB


@pytest.mark.parametrize("name", ["notes.txt", "x.igrec", "20261126T024800.123456Z-0-1.igrec.bak"])
def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / name).write_bytes(bytes(200 * KIB))
    write(RecordingDirectory(settings(tmp_path, removes_oldest=True)), *[1000] * 200)
    assert (tmp_path / "records" / name).exists()


@given(st.integers(0, 300_000), st.booleans())
def test_no_record_needs_more_space_than_is_reserved(size: int, compressible: bool) -> None:
    parts = encode_exchange(exchange_of(bytes(size) if compressible else os.urandom(size)))
    with tempfile.TemporaryDirectory() as folder:
        file = RecordingFile(f"{folder}/file")
        file.append(parts)
        file.close()
        assert Path(folder, "file").stat().st_size <= max_frame_bytes(total_size(parts))


def test_after_a_failed_write_the_next_record_starts_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RecordingDirectory(settings(tmp_path))
    directory.append(record())
    directory.flush()
    first = files(tmp_path)
    monkeypatch.setattr(module.RecordingFile, "flush", Mock(side_effect=OSError("broken")))
    with pytest.raises(OSError, match="broken"):
        directory.close_file()
    monkeypatch.undo()
    write(directory, 1000)
    assert len(files(tmp_path)) == len(first) + 1
    assert count_records(tmp_path) == 2


def test_a_full_disk_leaves_no_file_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, pwrite = RecordingDirectory(settings(tmp_path)), os.pwrite

    def fail_after_the_header(descriptor: int, data: bytes, position: int) -> int:
        if position or len(data) > FILE_HEADER_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", fail_after_the_header)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):  # noqa: PT012 - as the recorder does
            directory.append(record())
            directory.flush()
        directory.close_file()
    assert files(tmp_path) == []
