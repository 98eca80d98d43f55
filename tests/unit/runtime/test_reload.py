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

CONFIG = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"


class Harness:
    """A reloader; ``error`` is the exception that applying a configuration raises."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text(CONFIG)
        files = TrackedFiles()
        self.applied = [self.read(files)]
        self.error: Exception | None = None
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.history = ConfigHistory(file, files.sha256)
        self.reloader = ConfigReloader(self.read, self.apply, self.history, files)

    def read(self, files: TrackedFiles) -> Config:
        return load(self.file, {}, files)

    async def apply(self, config: Config) -> None:
        await self.proceed.wait()
        if self.error is not None:
            raise self.error
        self.applied.append(config)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "routes.yaml")


async def test_repeated_notifications_cause_one_reload(harness: Harness) -> None:
    await asyncio.gather(*(harness.reloader.reload_if_changed("changed") for _ in range(5)))
    assert len(harness.applied) == 1
    harness.file.write_text(CONFIG + "readiness: strict\n")
    for _ in range(3):
        await harness.reloader.reload_if_changed("changed")
    assert [each.readiness for each in harness.applied] == ["lenient", "strict"]


async def test_an_invalid_file_is_tried_once(harness: Harness) -> None:
    harness.file.write_text("nonsense")
    for _ in range(3):
        await harness.reloader.reload_if_changed("changed")
    page = harness.history.as_json()
    assert (page["number"], page["last_reload"]["ok"]) == (1, False)
    tried_at = page["last_reload"]["when"]
    await harness.reloader.reload_if_changed("changed")
    assert harness.history.as_json()["last_reload"]["when"] == tried_at
    harness.file.unlink()
    await harness.reloader.reload_if_changed("changed")
    assert "cannot be read" in harness.history.as_json()["last_reload"]["error"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigRejectedError("the address is taken"), "the address is taken"),
        (KeyError(), "internal error"),
    ],
)
async def test_a_rejected_configuration_is_not_applied(
    harness: Harness, error: Exception, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.error = error
    outcome = await harness.reloader.reload("SIGHUP")
    assert expected in outcome.error
    assert "the previous one stays active" in caplog.text
    harness.error = None
    assert not (await harness.reloader.reload("SIGHUP")).error
    assert harness.history.as_json()["number"] == 2


async def test_the_leading_caller_may_be_cancelled(harness: Harness) -> None:
    harness.proceed.clear()
    pending = asyncio.create_task(harness.reloader.reload("POST /reload"))
    await asyncio.sleep(0)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    harness.proceed.set()
    async with asyncio.timeout(20):
        assert not (await harness.reloader.reload("SIGHUP")).error
    assert len(harness.applied) == 3, "both reloads ran"
    assert harness.history.as_json()["number"] == 3


async def test_waiting_reload_requests_are_merged(harness: Harness) -> None:
    """Without merging, a client that repeatedly requests a reload and disconnects would queue
    reloads."""
    harness.proceed.clear()
    first = asyncio.create_task(harness.reloader.reload("SIGHUP"))
    await asyncio.sleep(0)
    while not harness.reloader._lock.locked():  # noqa: ASYNC110
        await asyncio.sleep(0)
    later = [asyncio.create_task(harness.reloader.reload("POST /reload")) for _ in range(5)]
    await asyncio.sleep(0)
    later.pop().cancel()
    harness.proceed.set()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(first, *later)
    assert [each.trigger for each in outcomes] == ["SIGHUP"] + ["POST /reload"] * 4
    assert len(harness.applied) == 3
