"""When watched files are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from infergate.observe.log_lines import start_logging
from infergate.runtime import file_watch as module
from infergate.runtime.file_watch import _directories, watch_files


class Looks:
    def __init__(self) -> None:
        self.count = 0
        self.came = asyncio.Event()

    async def __call__(self) -> None:
        self.count += 1
        self.came.set()

    async def earliest(self) -> None:
        self.came.clear()
        await self.came.wait()


async def watching(path: Path, quiet: Callable[[], float | None], looks: Looks) -> Any:
    return asyncio.create_task(watch_files(lambda: [path], quiet, looks))


async def ended(task: Any) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_files_are_checked_without_a_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.05)
    looks = Looks()
    async with asyncio.timeout(20):
        task = await watching(tmp_path / "a", lambda: 0.01, looks)
        await looks.earliest()
        await looks.earliest()
        await ended(task)


async def test_a_system_without_free_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(watchfiles, "awatch", none_left)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    looks = Looks()
    async with asyncio.timeout(20):
        task = await watching(tmp_path / "a", lambda: 0.01, looks)
        await looks.earliest()
        await looks.earliest()
        await ended(task)
    assert "every 0.01 s instead: OS file watch limit reached" in caplog.text


async def test_watching_is_switched_on_and_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.02)
    looks = Looks()
    quiet: list[float | None] = [None]
    requested = asyncio.Event()

    def how() -> float | None:
        requested.set()
        return quiet[0]

    async with asyncio.timeout(20):
        task = await watching(tmp_path / "a", how, looks)
        for _ in range(3):
            requested.clear()
            await requested.wait()
        assert looks.count == 0
        quiet[0] = 0.01
        await looks.earliest()
        quiet[0] = None
        await looks.earliest()
        await ended(task)


def test_the_folders_on_the_way_through_links(tmp_path: Path) -> None:
    for name in ("config", "config/..1", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/routes.yaml").write_text("")
    (tmp_path / "config/..1/routes.yaml").symlink_to("../../elsewhere/routes.yaml")
    (tmp_path / "config/..data").symlink_to("..1")
    (tmp_path / "config/routes.yaml").symlink_to("..data/routes.yaml")
    found = {each.resolve() for each in _directories([tmp_path / "config/routes.yaml"])}
    assert found == {tmp_path / name for name in ("config", "config/..1", "elsewhere")}
    assert _directories([tmp_path / "no/such"]) == {}


async def test_a_log_in_the_watched_folder_causes_no_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # in infergate's log format
    library = logging.getLogger("watchfiles")
    before = library.level
    start_logging("text")
    try:
        looks = Looks()
        async with asyncio.timeout(20):
            task = await watching(tmp_path / "a", lambda: 0.01, looks)
            for number in range(3):
                seen, looks.count = looks.count, 0
                while not looks.count:  # the watch may not be active yet
                    (tmp_path / "log").write_text(f"{number} {seen}")
                    await asyncio.sleep(0.02)
            await ended(task)
    finally:
        library.setLevel(before)
    assert [each.message for each in caplog.records if "watchfiles" in each.name] == []
