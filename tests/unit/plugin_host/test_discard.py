"""Closing of plug-ins that were never used."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from infergate.core.counters import PluginCounters
from infergate.plugin_host import runner as runner_module
from infergate.plugin_host.instances import HOOK_FAILURES
from infergate.plugin_host.runner import PluginRunner
from infergate.plugins.base import Plugin


class Asynchronous(Plugin):
    is_closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


class Plain(Plugin):
    is_closed = False

    def close(self) -> Any:
        self.is_closed = True


class Raises(Plugin):
    async def close(self) -> None:
        raise self.options


class Hangs(Plugin):
    async def close(self) -> None:
        await asyncio.Event().wait()


def discard(plugin: Plugin) -> None:
    threads = threading.active_count()
    PluginRunner(plugin, "hook 'guard'", PluginCounters(), HOOK_FAILURES).discard()
    for thread in threading.enumerate():
        if thread.name == "infergate hook 'guard'":
            thread.join(20)
    assert threading.active_count() <= threads


@pytest.mark.parametrize("plugin", [Asynchronous(), Plain()])
def test_a_discarded_plugin_is_closed_and_its_threads_end(plugin: Any) -> None:
    discard(plugin)
    assert plugin.is_closed


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (Raises(ValueError("no")), "failed while it was closed: ValueError: no"),
        (Raises(SystemExit(3)), "tried to end its thread: SystemExit: 3"),
        (Hangs(), "failed while it was closed: TimeoutError"),
    ],
)
def test_a_failing_or_hanging_close_of_a_discarded_plugin_is_logged(
    plugin: Plugin,
    text: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "CLOSE_SECONDS", 0.05)
    discard(plugin)
    assert f"hook 'guard' {text}" in caplog.text
