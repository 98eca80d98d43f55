"""A file that is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from infergate.access.watched_file import CHECK_INTERVAL_SECONDS, WatchedFile


def number(data: bytes) -> int:
    return int(data)


class Failures:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def watched(path: Path, failures: Failures, value: int = 1) -> WatchedFile[int]:
    return WatchedFile(path, number, value, failures)


async def test_a_change_is_seen_after_the_check_interval(tmp_path: Path) -> None:
    path, failures = tmp_path / "f", Failures()
    path.write_text("1")
    file = watched(path, failures)
    assert await file.current(100.0) == 1
    path.write_text("22")
    assert await file.current(100.0 + CHECK_INTERVAL_SECONDS / 2) == 1
    assert await file.current(100.0 + CHECK_INTERVAL_SECONDS) == 22
    assert failures.count == 0


async def test_changes_before_the_first_read_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("2")
    assert await watched(path, Failures()).current(0.0) == 2


async def test_a_replaced_symlink_is_followed(tmp_path: Path) -> None:
    """Replace a file as Kubernetes updates a mounted volume."""
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        os.utime(tmp_path / name / "f", (5, 5))  # even if the file's time and size are unchanged
    (tmp_path / "data").symlink_to("1")
    path = tmp_path / "f"
    path.symlink_to("data/f")
    file = watched(path, Failures())
    assert await file.current(0.0) == 1
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "data")
    assert await file.current(CHECK_INTERVAL_SECONDS) == 2


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("x")])
async def test_an_invalid_file_keeps_the_previous_content(
    spoil: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, failures = tmp_path / "f", Failures()
    path.write_text("7")
    file = watched(path, failures)
    assert await file.current(0.0) == 7
    spoil(path)  # type: ignore[operator]
    caplog.set_level(logging.ERROR, "infergate.access")
    for moment in range(1, 6):
        assert await file.current(moment * CHECK_INTERVAL_SECONDS) == 7
    assert failures.count
    assert len(caplog.records) == 1  # reported once, not every second
    assert "stays valid" in caplog.text
    path.write_text("8")
    assert await file.current(10.0) == 8
    spoil(path)  # type: ignore[operator]
    assert await file.current(20.0) == 8
    assert len(caplog.records) == 2


async def test_callers_share_one_read_of_a_hanging_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a shared read, concurrent callers would wait for one another's reads in sequence."""
    path = tmp_path / "f"
    path.write_text("1")
    file = watched(path, Failures())
    looks, entered, gate = 0, asyncio.Event(), asyncio.Event()

    async def look() -> None:
        nonlocal looks
        looks += 1
        entered.set()
        await gate.wait()

    monkeypatch.setattr(file, "_check", look)
    waiting = [
        asyncio.ensure_future(file.current(2 * CHECK_INTERVAL_SECONDS * moment))
        for moment in range(10)
    ]
    await entered.wait()
    gate.set()
    await asyncio.gather(*waiting)
    assert looks == 1
