from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from infergate.core.exchange import Outcome
from infergate.core.limits import MIB
from infergate.core.messages import InferResponse
from infergate.migration.replay import entries
from infergate.migration.replay.entries import (
    DamagedFilePart,
    Entry,
    read_entries,
    read_entry,
    total_bytes,
)
from infergate.recording.encoding import RecordedExchange
from infergate.recording.format import FORMAT_VERSION, RecordingError, pack_file_header
from infergate.recording.reader import read_recording
from recordings import exchange, write_recording


def numbers(parts: Iterator[Entry]) -> list[str]:
    return [
        entry.exchange.request_id.removeprefix("id-")
        if isinstance(entry, RecordedExchange)
        else "damaged"
        for entry in parts
    ]


def test_inferences_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    write_recording(tmp_path / "a", (exchange(n, started_at=n) for n in (2, 1, 3)))
    assert numbers(read_entries([tmp_path / "a"])) == ["1", "2", "3"]


def test_files_that_overlap_in_time_are_merged(tmp_path: Path) -> None:
    write_recording(tmp_path / "a", (exchange(n, started_at=n) for n in (1, 4, 5)))
    write_recording(tmp_path / "b", (exchange(n, started_at=n) for n in (2, 3, 6)))
    write_recording(tmp_path / "empty", [])
    files = [tmp_path / name for name in ("b", "empty", "a")]
    assert numbers(read_entries(files)) == ["1", "2", "3", "4", "5", "6"]


def test_a_later_file_is_not_opened_before_its_first_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 10, 20):
        content = (exchange(n, started_at=n) for n in range(start, start + 3))
        write_recording(tmp_path / f"{start}", content)
    opened: list[str] = []
    read = entries.read_recording

    def recording_reader(path: Path) -> Iterator[object]:
        opened.append(path.name)
        yield from read(path)

    monkeypatch.setattr(entries, "read_recording", recording_reader)
    reader = read_entries([tmp_path / f"{start}" for start in (20, 10, 0)])
    del opened[:]  # each file was opened to read the time of its first record
    assert numbers(iter([next(reader) for _ in range(3)])) == ["0", "1", "2"]
    assert "20" not in opened


def count_records_read_for_the_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of records that are read before the first inference is returned."""
    count = 0

    def recording_reader(path: Path) -> Iterator[object]:
        nonlocal count
        for entry in read_recording(path):
            count += 1
            yield entry

    with monkeypatch.context() as patched:
        patched.setattr(entries, "read_recording", recording_reader)
        reader = read_entries([file])
        count = 0
        next(reader)
    return count


def test_only_a_limited_number_of_inferences_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recording(tmp_path / "a", (exchange(n, started_at=n) for n in range(1000)))
    assert 1 <= count_records_read_for_the_first(tmp_path / "a", monkeypatch) <= 258
    monkeypatch.setattr(entries, "_MAX_WAITING_BYTES", 20)  # two inferences take 16 bytes
    assert count_records_read_for_the_first(tmp_path / "a", monkeypatch) <= 4


def test_responses_without_tensors_count_for_the_limit_of_the_bytes_that_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome((InferResponse(""),) * 1000)
    content = (exchange(n, started_at=n, outcome=outcome) for n in range(20))
    write_recording(tmp_path / "a", content)
    monkeypatch.setattr(entries, "_MAX_WAITING_BYTES", MIB)
    assert count_records_read_for_the_first(tmp_path / "a", monkeypatch) <= 4


def test_a_damaged_part_is_reported_with_its_position_and_the_rest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    positions = write_recording(file, (exchange(n, started_at=n) for n in range(3)))
    data = bytearray(file.read_bytes())
    data[positions[1] + 50] ^= 1
    file.write_bytes(data)
    reader = list(read_entries([file]))
    damaged = [entry for entry in reader if isinstance(entry, DamagedFilePart)]
    assert sorted(numbers(iter(reader))) == ["0", "2", "damaged"]
    assert [entry.text for entry in damaged] == [
        f"{file}: bytes {positions[1]} to {positions[2] - 1}: the checksum of the record is wrong"
    ]


def test_a_truncated_file_loses_only_its_last_inference(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_recording(file, (exchange(n) for n in range(3)))
    file.write_bytes(file.read_bytes()[:-1])
    reader = list(read_entries([file]))
    assert sorted(numbers(iter(reader))) == ["0", "1", "damaged"]
    (damaged,) = (entry for entry in reader if isinstance(entry, DamagedFilePart))
    assert "the file ends 1 bytes before" in damaged.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a recording", "byte 0: this is not an infergate recording"),
        (b"", "byte 0: this is not an infergate recording"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_an_unreadable_file_is_rejected_before_the_first_entry(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    valid, invalid = tmp_path / "valid", tmp_path / "invalid"
    write_recording(valid, [exchange(1)])
    if content is not None:
        invalid.write_bytes(content)
    with pytest.raises(RecordingError, match=reason):
        read_entries([valid, invalid])


def test_a_file_of_a_newer_version_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infergate.recording.format.FORMAT_VERSION", FORMAT_VERSION + 1)
    (tmp_path / "a").write_bytes(pack_file_header(b"12345678"))
    with pytest.raises(RecordingError, match=f"byte 8: the format version is {FORMAT_VERSION + 1}"):
        read_entries([tmp_path / "a"])


def test_invalid_times_do_not_break_the_order(tmp_path: Path) -> None:
    times = [math.nan, 5.0, math.inf, 1.0, 1e300, -1e300]
    content = (exchange(n, started_at=time) for n, time in enumerate(times))
    write_recording(tmp_path / "a", content)
    assert numbers(read_entries([tmp_path / "a"])) == ["0", "2", "4", "5", "3", "1"]


def test_an_inference_is_found_by_its_number(tmp_path: Path) -> None:
    write_recording(tmp_path / "a", (exchange(n, started_at=9 - n) for n in (7, 8)))
    assert read_entry(tmp_path / "a", 2).exchange.request_id == "id-8"
    with pytest.raises(RecordingError, match="has 2 readable inferences; there is no number 3"):
        read_entry(tmp_path / "a", 3)


def test_the_sizes_of_files_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    assert total_bytes([tmp_path / "a", tmp_path / "a"]) == 6
    with pytest.raises(RecordingError, match="cannot be read"):
        total_bytes([tmp_path / "b"])
