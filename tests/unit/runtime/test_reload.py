"""Reload requests and their results."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from infergate.config.load import load
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.runtime import reload
from infergate.runtime.config_history import ConfigHistory, ReloadResult
from infergate.runtime.reload import ConfigReloader
from infergate.runtime.running import ConfigRejectedError
from waiting import until

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
        self.is_creating_plugins = False
        self.reloader = ConfigReloader(
            self.read, self.apply, self.history, files,
            is_creating_plugins=lambda: self.is_creating_plugins,
        )  # fmt: skip

    def read(self, files: TrackedFiles) -> Config:
        return load(self.file, {}, files)

    async def apply(self, config: Config) -> None:
        self.is_creating_plugins = not self.proceed.is_set()
        await self.proceed.wait()
        self.is_creating_plugins = False
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
    state = harness.history.as_json()
    assert (state["number"], state["last_reload"]["ok"]) == (1, False)
    tried_at = state["last_reload"]["when"]
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
    assert "the previous configuration stays active" in caplog.text
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
    await until(harness.reloader._lock.locked)
    later = [asyncio.create_task(harness.reloader.reload("POST /reload")) for _ in range(5)]
    await asyncio.sleep(0)
    later.pop().cancel()
    harness.proceed.set()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(first, *later)
    assert [each.trigger for each in outcomes] == ["SIGHUP"] + ["POST /reload"] * 4
    assert len(harness.applied) == 3


async def hanging_reload(harness: Harness, trigger: str = "SIGHUP") -> asyncio.Task[ReloadResult]:
    """Begin a reload that waits for a plug-in until ``harness.proceed`` is set."""
    harness.proceed.clear()
    task = harness.reloader.request(trigger)
    await until(lambda: harness.is_creating_plugins)
    return task


async def test_a_reload_that_waits_for_a_plugin_is_abandoned_for_a_changed_file(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SLOW_SECONDS", 0.01)
    first = await hanging_reload(harness)
    harness.file.write_text(CONFIG + "readiness: strict\n")
    harness.proceed = asyncio.Event()
    harness.proceed.set()
    async with asyncio.timeout(20):
        second = await harness.reloader.reload("POST /reload")
        assert "abandoned for a later reload" in (await first).error
    assert not second.error
    assert harness.applied[-1].readiness == "strict"
    assert len(harness.applied) == 2, "the abandoned configuration was not applied"


async def test_a_reload_behind_one_that_waits_for_a_plugin_fails_soon(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SLOW_SECONDS", 0.01)
    first = await hanging_reload(harness)
    async with asyncio.timeout(20):
        second = await harness.reloader.reload("POST /reload")
        assert "an earlier reload has waited 0 s for a plug-in" in second.error
        assert not first.done()
        harness.proceed.set()
        assert not (await first).error


async def test_a_change_is_noticed_while_a_reload_waits_for_a_plugin(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SLOW_SECONDS", 0.01)
    harness.file.write_text(CONFIG + "readiness: strict\n")
    harness.proceed.clear()
    async with asyncio.timeout(20):
        await harness.reloader.reload_if_changed("changed")
        await harness.reloader.reload_if_changed("changed")
        assert harness.reloader._pending is None, "nothing has changed since"
        harness.file.write_text(CONFIG + "helpers: 0\n")
        harness.proceed = asyncio.Event()
        harness.proceed.set()
        await harness.reloader.reload_if_changed("changed")
        await until(lambda: len(harness.applied) >= 2)
    assert [each.helpers for each in harness.applied[1:]] == [0]


async def test_a_slow_reload_that_waits_for_something_else_is_not_abandoned(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SLOW_SECONDS", 0.01)
    first = await hanging_reload(harness)
    harness.is_creating_plugins = False
    harness.file.write_text(CONFIG + "readiness: strict\n")
    second = harness.reloader.request("POST /reload")
    await asyncio.wait({second}, timeout=0.05)
    assert not second.done()
    harness.proceed.set()
    async with asyncio.timeout(20):
        assert not (await first).error
        assert not (await second).error
    assert len(harness.applied) == 3


async def test_a_reload_is_not_abandoned_after_its_plugins_were_created(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SLOW_SECONDS", 0.01)
    first = await hanging_reload(harness)
    checking, may_return = threading.Event(), threading.Event()

    def have_changed(_: TrackedFiles) -> bool:
        checking.set()
        return may_return.wait(20)

    monkeypatch.setattr(TrackedFiles, "have_changed", have_changed)
    second = harness.reloader.request("POST /reload")
    assert await asyncio.to_thread(checking.wait, 20)
    harness.is_creating_plugins = False  # ``apply`` must not be cancelled from now on
    may_return.set()
    await asyncio.wait({second}, timeout=0.05)
    assert not first.done()
    harness.proceed.set()
    async with asyncio.timeout(20):
        assert not (await first).error
        assert not (await second).error


async def test_a_reload_that_cannot_check_the_files_does_not_block_later_reloads(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: TrackedFiles) -> bool:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(reload, "SLOW_SECONDS", 0.01)
        patched.setattr(TrackedFiles, "have_changed", fail)
        first = await hanging_reload(harness)
        with pytest.raises(RuntimeError, match="thread"):
            await harness.reloader.reload("SIGHUP")
    harness.proceed.set()
    async with asyncio.timeout(20):
        assert not (await first).error
        assert not (await harness.reloader.reload("SIGHUP")).error
