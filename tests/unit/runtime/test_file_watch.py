"""File watching, by notifications and by polling."""

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


class Callback:
    def __init__(self) -> None:
        self.count = 0
        self.called = asyncio.Event()

    async def __call__(self) -> None:
        self.count += 1
        self.called.set()

    async def next_call(self) -> None:
        self.called.clear()
        await self.called.wait()


async def start_watch(path: Path, interval: Callable[[], float | None], callback: Callback) -> Any:
    return asyncio.create_task(watch_files(lambda: [path], interval, callback))


async def cancel(task: Any) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_files_are_checked_without_a_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.05)
    callback = Callback()
    async with asyncio.timeout(20):
        task = await start_watch(tmp_path / "a", lambda: 0.01, callback)
        await callback.next_call()
        await callback.next_call()
        await cancel(task)


async def test_files_are_polled_if_no_watch_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(watchfiles, "awatch", fail)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    callback = Callback()
    async with asyncio.timeout(20):
        task = await start_watch(tmp_path / "a", lambda: 0.01, callback)
        await callback.next_call()
        await callback.next_call()
        await cancel(task)
    assert "every 0.01 s instead: OS file watch limit reached" in caplog.text


async def test_watching_is_enabled_and_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.02)
    callback = Callback()
    interval: list[float | None] = [None]
    requested = asyncio.Event()

    def current_interval() -> float | None:
        requested.set()
        return interval[0]

    async with asyncio.timeout(20):
        task = await start_watch(tmp_path / "a", current_interval, callback)
        for _ in range(3):
            requested.clear()
            await requested.wait()
        assert callback.count == 0
        interval[0] = 0.01
        await callback.next_call()
        interval[0] = None
        await callback.next_call()
        await cancel(task)


def test_the_folders_of_symbolic_links_are_watched(tmp_path: Path) -> None:
    for name in ("config", "config/..1", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/routes.yaml").write_text("")
    (tmp_path / "config/..1/routes.yaml").symlink_to("../../elsewhere/routes.yaml")
    (tmp_path / "config/..data").symlink_to("..1")
    (tmp_path / "config/routes.yaml").symlink_to("..data/routes.yaml")
    folders = {each.resolve() for each in _directories([tmp_path / "config/routes.yaml"])}
    assert folders == {tmp_path / name for name in ("config", "config/..1", "elsewhere")}
    assert _directories([tmp_path / "no/such"]) == {}


async def test_log_lines_beside_a_watched_file_cause_no_log_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # the level of watchfiles' messages
    library = logging.getLogger("watchfiles")
    before = library.level
    start_logging("text")
    try:
        callback = Callback()
        async with asyncio.timeout(20):
            task = await start_watch(tmp_path / "a", lambda: 0.01, callback)
            for number in range(3):
                calls, callback.count = callback.count, 0
                while not callback.count:  # the watch may not be active yet
                    (tmp_path / "log").write_text(f"{number} {calls}")
                    await asyncio.sleep(0.02)
            await cancel(task)
    finally:
        library.setLevel(before)
    assert [each.message for each in caplog.records if "watchfiles" in each.name] == []
