"""Reload requests and their results."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infergate.config.load import load
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.reload import ConfigReloader
from infergate.runtime.running import ConfigRejectedError

GOOD = "backends: {ours: {protocol: builtin}}\nroutes: [{model: '*', backend: ours}]\n"


class Harness:
    """``wrong`` is the exception that applying a configuration raises."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text(GOOD)
        files = TrackedFiles()
        self.taken = [self.read(files)]
        self.wrong: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()
        self.history = ConfigHistory(file, files.sha256)
        self.reloads = ConfigReloader(self.read, self.take, self.history, files)

    def read(self, files: TrackedFiles) -> Config:
        return load(self.file, {}, files)

    async def take(self, config: Config) -> None:
        await self.free.wait()
        if self.wrong is not None:
            raise self.wrong
        self.taken.append(config)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "routes.yaml")


async def test_a_burst_of_notifications_is_one_reload(harness: Harness) -> None:
    await asyncio.gather(*(harness.reloads.reload_if_changed("changed") for _ in range(5)))
    assert len(harness.taken) == 1
    harness.file.write_text(GOOD + "readiness: lenient\n")
    for _ in range(3):
        await harness.reloads.reload_if_changed("changed")
    assert [each.readiness for each in harness.taken] == ["strict", "lenient"]


async def test_an_invalid_file_is_tried_once(harness: Harness) -> None:
    harness.file.write_text("nonsense")
    for _ in range(3):
        await harness.reloads.reload_if_changed("changed")
    page = harness.history.as_json()
    assert (page["number"], page["last_reload"]["ok"]) == (1, False)
    tried = page["last_reload"]["when"]
    await harness.reloads.reload_if_changed("changed")
    assert harness.history.as_json()["last_reload"]["when"] == tried
    harness.file.unlink()
    await harness.reloads.reload_if_changed("changed")
    assert "cannot be read" in harness.history.as_json()["last_reload"]["error"]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (ConfigRejectedError("the address is taken"), "the address is taken"),
        (KeyError(), "internal error"),
    ],
)
async def test_rejected_configurations(
    harness: Harness, wrong: Exception, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.wrong = wrong
    outcome = await harness.reloads.reload("SIGHUP")
    assert expected in outcome.error
    assert "the previous one stays active" in caplog.text
    harness.wrong = None
    assert not (await harness.reloads.reload("SIGHUP")).error
    assert harness.history.as_json()["number"] == 2


async def test_the_leading_caller_may_be_cancelled(harness: Harness) -> None:
    harness.free.clear()
    pending = asyncio.create_task(harness.reloads.reload("POST /reload"))
    await asyncio.sleep(0)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    harness.free.set()
    async with asyncio.timeout(20):
        assert not (await harness.reloads.reload("SIGHUP")).error
    assert len(harness.taken) == 3, "one after the other"
    assert harness.history.as_json()["number"] == 3


async def test_waiting_reload_requests_are_merged(harness: Harness) -> None:
    """Otherwise a client that repeatedly requests a reload and disconnects would queue reloads."""
    harness.free.clear()
    first = asyncio.create_task(harness.reloads.reload("SIGHUP"))
    await asyncio.sleep(0)
    while not harness.reloads._lock.locked():  # noqa: ASYNC110
        await asyncio.sleep(0)
    later = [asyncio.create_task(harness.reloads.reload("POST /reload")) for _ in range(5)]
    await asyncio.sleep(0)
    later.pop().cancel()
    harness.free.set()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(first, *later)
    assert [each.trigger for each in outcomes] == ["SIGHUP"] + ["POST /reload"] * 4
    assert len(harness.taken) == 3
