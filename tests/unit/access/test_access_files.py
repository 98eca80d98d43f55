"""A file that is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from infergate.access.watched_file import CHECK_INTERVAL_SECONDS, WatchedFile
from waiting import until


def watched_file(path: Path, on_failure: Mock | None = None) -> WatchedFile[int]:
    return WatchedFile(path, int, 1, on_failure or Mock())


async def test_a_change_is_seen_after_the_check_interval(tmp_path: Path) -> None:
    path, on_failure = tmp_path / "f", Mock()
    path.write_text("1")
    file = watched_file(path, on_failure)
    assert await file.current(100.0) == 1
    path.write_text("22")
    assert await file.current(100.0 + CHECK_INTERVAL_SECONDS / 2) == 1
    assert await file.current(100.0 + CHECK_INTERVAL_SECONDS) == 22
    on_failure.assert_not_called()


async def test_the_first_read_returns_the_current_content(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("2")
    assert await watched_file(path).current(0.0) == 2


async def test_a_replaced_symlink_is_followed(tmp_path: Path) -> None:
    """Replace a file as Kubernetes updates a mounted volume."""
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        os.utime(tmp_path / name / "f", (5, 5))  # the times and sizes are equal
    (tmp_path / "data").symlink_to("1")
    path = tmp_path / "f"
    path.symlink_to("data/f")
    file = watched_file(path)
    assert await file.current(0.0) == 1
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "data")
    assert await file.current(CHECK_INTERVAL_SECONDS) == 2


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("x")])
async def test_an_invalid_file_keeps_the_previous_content(
    damage: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, on_failure = tmp_path / "f", Mock()
    path.write_text("7")
    file = watched_file(path, on_failure)
    assert await file.current(0.0) == 7
    damage(path)
    caplog.set_level(logging.ERROR, "infergate.access")
    for moment in range(1, 6):
        assert await file.current(moment * CHECK_INTERVAL_SECONDS) == 7
    on_failure.assert_called()
    assert len(caplog.records) == 1  # reported once, not every second
    assert "stays valid" in caplog.text
    path.write_text("8")
    assert await file.current(10.0) == 8
    damage(path)
    assert await file.current(20.0) == 8
    assert len(caplog.records) == 2


async def test_callers_share_one_read_of_a_hanging_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    file, gate = watched_file(path), asyncio.Event()
    check = AsyncMock(side_effect=gate.wait)
    monkeypatch.setattr(file, "_check", check)
    waiting = [
        asyncio.ensure_future(file.current(2 * CHECK_INTERVAL_SECONDS * moment))
        for moment in range(10)
    ]
    await until(lambda: check.await_count)
    gate.set()
    await asyncio.gather(*waiting)
    check.assert_awaited_once()
