"""Folders of inferences that two servers answered differently."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infergate.comparison.settings import MismatchStorage
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import OpaqueParameters
from infergate.recording.mismatches import FAILED, FULL, STORED, MismatchFolder
from infergate.recording.reader import RecordedExchange, read_recording
from infergate.recording.writer import RecordingFile
from recordings import tensor

HEADERS = {
    "x-kept": "1",
    "x-kept-token": "secret",
    "authorization": "Bearer secret",
    "cookie": "secret",
    "x-other": "secret",
}


EXCHANGE = Exchange(
    InferRequest("m", "", "id", inputs=(tensor("x", 1, 2),)),
    Outcome((InferResponse("m", "1", "id", {}, (tensor("y", 3),)),), None, 0.25),
    "v2-rest",
    "m",
    "old",
    "7",
    HEADERS,
    1e9,
)
MIRRORED = Outcome((InferResponse("m", "1", "id", {}, (tensor("y", 4),)),), None, 0.5)


def folder_at(path: Path, **limits: Any) -> MismatchFolder:
    storage = MismatchStorage(path / "kept", 100, 1 << 20, 3600.0)
    return MismatchFolder(replace(storage, **limits))


def files(path: Path) -> list[Path]:
    return sorted((path / "kept").iterdir())


def only_record(path: Path) -> RecordedExchange:
    (file,) = files(path)
    (stored,) = read_recording(file)
    assert isinstance(stored, RecordedExchange)
    return stored


def test_a_mismatch_is_a_private_recording_with_both_responses(tmp_path: Path) -> None:
    assert folder_at(tmp_path).store(EXCHANGE, MIRRORED, "new") == STORED
    stored = only_record(tmp_path)
    assert stored.exchange == replace(EXCHANGE, headers={})
    assert stored.further_outcomes == {"new": MIRRORED}
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_credentials_and_redacted_tensors_are_not_stored(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, headers=("*",), zeroed=("x", "y*"))
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED
    stored = only_record(tmp_path)
    assert stored.exchange.headers == {"x-kept": "1", "x-other": "secret"}
    tensors = [
        *stored.exchange.request.inputs,
        *stored.exchange.outcome.responses[0].outputs,
        *stored.further_outcomes["new"].responses[0].outputs,
    ]
    assert [bytes(each.data) for each in tensors] == [bytes(8), bytes(4), bytes(4)]
    assert stored.redacted == ("x", "y")


@pytest.mark.parametrize("limits", [{"max_count": 2}, {"max_bytes": 1700}])
def test_a_full_folder_takes_no_more_until_files_are_removed(
    tmp_path: Path, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("infergate.recording.mismatches.time.monotonic", lambda: now[0])
    first, second = folder_at(tmp_path, **limits), folder_at(tmp_path, **limits)  # two workers
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_bytes(bytes(5000))  # this file is not counted
    results = [first.store(EXCHANGE, MIRRORED, "new") for _ in range(2)]
    while FULL not in results:
        results.append(second.store(EXCHANGE, MIRRORED, "new"))
    stored = [file for file in files(tmp_path) if file.suffix != ".txt"]
    assert len(stored) == results.count(STORED) >= 2
    stored[0].unlink()
    assert second.store(EXCHANGE, MIRRORED, "new") == FULL  # the folder is listed once a second
    now[0] += 1
    assert second.store(EXCHANGE, MIRRORED, "new") == STORED
    assert first.store(EXCHANGE, MIRRORED, "new") == FULL


def test_files_are_deleted_at_their_maximum_age(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, max_count=1, max_age=100.0)
    folder.remove_expired()  # there is no folder yet
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED
    folder.remove_expired()
    (file,) = files(tmp_path)
    aged = file.stat().st_mtime - 200
    os.utime(file, (aged, aged))
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED
    (newer,) = files(tmp_path)
    assert newer != file
    os.utime(newer, (aged, aged))
    folder.remove_expired()
    assert files(tmp_path) == []


def test_a_partial_file_of_a_killed_process_is_deleted(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mismatch-1-2-3.partial").write_bytes(b"half")
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED
    only_record(tmp_path)


def test_files_of_others_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, max_count=1)
    (tmp_path / "kept").mkdir()
    others = {
        "20260101T000000.000000Z-0-1.igrec",  # a recording
        "1-2-3.igrec",
        "mismatch-of-may.igrec",
        "mismatch-1-2-3.igrec.bak",
        "download.partial",
    }
    for name in others:
        (tmp_path / "kept" / name).write_bytes(bytes(10))
        os.utime(tmp_path / "kept" / name, (1, 1))
    folder.remove_expired()
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED
    assert others < {file.name for file in files(tmp_path)}
    assert len(files(tmp_path)) == len(others) + 1


def test_a_full_disk_stops_storing_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, now = folder_at(tmp_path), [1000.0]
    monkeypatch.setattr("infergate.recording.mismatches.time.monotonic", lambda: now[0])
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(RecordingFile, "append", full)
        assert folder.store(EXCHANGE, MIRRORED, "new") == FAILED
    assert folder.store(EXCHANGE, MIRRORED, "new") == FAILED
    assert files(tmp_path) == []
    (line,) = [each.message for each in caplog.records]
    assert "no mismatch is stored for 60 seconds: [Errno 28]" in line
    now[0] += 61
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED


def test_exchanges_that_cannot_be_recorded_are_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_at(tmp_path)
    request = replace(EXCHANGE.request, parameters={"a": object()})
    assert folder.store(replace(EXCHANGE, request=request), MIRRORED, "new") == FAILED
    assert "cannot be recorded" in caplog.text
    assert folder.store(EXCHANGE, MIRRORED, "new") == STORED


def test_a_redacted_body_and_its_responses_are_not_stored(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, zeroed=["image"])
    body = OpaqueParameters({}, ("tfs-rest",), b"classify\0PATIENT")
    request = replace(EXCHANGE.request, inputs=(), parameters=body)
    assert folder.store(replace(EXCHANGE, request=request), MIRRORED, "new") == STORED
    record = only_record(tmp_path)
    assert record.redacted == ("(body)",)
    assert getattr(record.exchange.request.parameters, "text", None) == b""
    for outcome in (record.exchange.outcome, *record.further_outcomes.values()):
        assert [response.outputs for response in outcome.responses] == [()]
