"""Plug-ins across reloads of the configuration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import plugin_kit
from infergate.backends.python_model import PythonModelBackend
from infergate.config.schema import Config
from infergate.plugin_host.loading import PluginError
from infergate.runtime import assemble as assemble_module
from infergate.runtime.assemble import assemble
from infergate.runtime.running import ConfigRejectedError, RunningGateway
from running_gateways import WatchedConstructor, quiet_config, serving
from waiting import until


def config(**changes: Any) -> Config:
    hook = {"hook": "plugin_kit:Hook", **changes.pop("hook", {})}
    model = {"protocol": "python", "model": "plugin_kit:Double", **changes.pop("model", {})}
    sections = {
        "backends": {"py": model},
        "hooks": {"guard": hook},
        "routes": ({"model": "*", "backend": "py", "hooks": ("guard",)},),
    }
    return quiet_config(**sections | changes)


def with_factor(factor: int, **changes: Any) -> Config:
    return config(model={"options": {"factor": factor}}, **changes)


def hook_and_backend(running: RunningGateway) -> tuple[Any, Any]:
    active = running._active
    return active.plugins.hooks["guard"].runner.plugin, active.gateway.backends[0]


def fail(*_: object, **__: object) -> None:
    raise OSError("a file is missing")


async def test_unchanged_plugins_are_kept_and_changed_ones_are_closed() -> None:
    async with serving(config()) as running:
        hook, backend = hook_and_backend(running)
        await running.reload(config(readiness="lenient"))
        assert hook_and_backend(running) == (hook, backend)
        await running.reload(with_factor(3))
        assert hook_and_backend(running)[0] is hook
        assert hook_and_backend(running)[1] is not backend
        await running.reload(config(hook={"timeout": "2s"}))
        assert hook_and_backend(running)[0] is not hook
    assert backend._model.closed


async def test_a_plugin_is_created_outside_the_event_loop_during_a_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    async with serving(config()) as running:
        monkeypatch.setattr(
            plugin_kit.Double,
            "__init__",
            lambda self, options: threads.append(threading.current_thread()),
        )
        prepare = running._prepare

        def prepare_in_thread(new: Config, old: Any) -> Callable[[], None]:
            create = prepare(new, old)

            def create_in_thread() -> None:
                threads.append(threading.current_thread())
                create()

            return create_in_thread

        running._prepare = prepare_in_thread  # type: ignore[misc]
        await running.reload(with_factor(3))
    assert len(threads) == 2, "the plug-in is created once"
    assert threading.main_thread() not in threads


async def test_a_plugin_that_fails_rejects_the_configuration() -> None:
    async with serving(config()) as running:
        before = hook_and_backend(running)
        with pytest.raises(ConfigRejectedError, match="backend 'py': start failed: OSError"):
            await running.reload(config(model={"model": "plugin_kit:FailsToStart"}))
        assert hook_and_backend(running) == before


async def test_an_abandoned_reload_has_no_effect_when_its_constructor_returns(
    monkeypatch: pytest.MonkeyPatch, constructor: WatchedConstructor
) -> None:
    discarded: list[Any] = []
    discard = PythonModelBackend.discard

    def record(self: PythonModelBackend) -> None:
        discard(self)
        discarded.append(self)

    monkeypatch.setattr(PythonModelBackend, "discard", record)
    async with serving(config()) as running:
        first = asyncio.create_task(running.reload(with_factor(3)))
        await asyncio.to_thread(constructor.entered.wait, 60)
        assert running.is_creating_plugins
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not running.is_creating_plugins
        await running.reload(with_factor(4))
        backend = hook_and_backend(running)[1]
        assert backend._model.options.factor == 4
        constructor.release.set()
        await until(lambda: discarded)
        assert discarded[0]._model.options.factor == 3
        assert discarded[0]._model.closed
        await running.reload(with_factor(4, readiness="strict"))
        assert hook_and_backend(running)[1] is backend


async def test_an_abandoned_reload_creates_no_further_plugins_and_keeps_none(
    constructor: WatchedConstructor,
) -> None:
    async with serving(config()) as running:
        model = {"protocol": "python", "model": "plugin_kit:Double"}
        models = {name: model | {"options": {"factor": 3}} for name in ("py", "further")}
        route = {"model": "*", "backend": "further"}
        abandoned = config(backends=models, hooks={}, routes=(route,))
        reload = asyncio.create_task(running.reload(abandoned))
        await asyncio.to_thread(constructor.entered.wait, 60)
        reload.cancel()
        await asyncio.gather(reload, return_exceptions=True)
        constructor.release.set()
        await until(lambda: constructor.created[-1].closed)
        assert len(constructor.created) == 2, "the model in use, and the one that was being created"


async def test_a_reload_that_is_cancelled_before_its_thread_runs_does_not_affect_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayed: list[Callable[[], None]] = []
    created: list[int] = []
    create = plugin_kit.Double.__init__

    def init(self: plugin_kit.Double, options: plugin_kit.DoubleOptions) -> None:
        create(self, options)
        created.append(options.factor)
        if options.factor == 4:  # the first reload's thread runs only now
            with pytest.raises(PluginError, match="abandoned"):
                delayed.pop()()

    async def delay(function: Callable[..., None], *arguments: Any) -> None:
        delayed.append(partial(function, *arguments))
        await asyncio.Event().wait()

    async with serving(config()) as running:
        with monkeypatch.context() as patch:
            patch.setattr("infergate.runtime.running.to_daemon_thread", delay)
            reload = asyncio.create_task(running.reload(with_factor(3)))
            while not delayed:  # noqa: ASYNC110
                await asyncio.sleep(0)
            reload.cancel()
            await asyncio.gather(reload, return_exceptions=True)
        monkeypatch.setattr(plugin_kit.Double, "__init__", init)
        await running.reload(with_factor(4))
        assert running.config.backends["py"].options == {"factor": 4}
        assert (created[0], delayed) == (4, [])


async def test_a_configuration_that_is_rejected_after_its_plugins_were_created_closes_them(
    monkeypatch: pytest.MonkeyPatch, constructor: WatchedConstructor
) -> None:
    async with serving(config()) as running:
        monkeypatch.setattr(assemble_module, "make_recorder", fail)
        with pytest.raises(ConfigRejectedError, match="a file is missing"):
            await running.reload(with_factor(4))
        await until(lambda: constructor.created[-1].closed)
        assert [each.options.factor for each in constructor.created] == [2, 4]


@pytest.mark.parametrize("fails", ["plug-in", "recorder"])
async def test_a_start_that_fails_closes_the_plugins_that_were_created(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    closed = threading.Event()

    async def close(_: plugin_kit.Hook) -> None:
        closed.set()

    monkeypatch.setattr(plugin_kit.Hook, "close", close)
    if fails == "recorder":
        monkeypatch.setattr(assemble_module, "make_recorder", fail)
    model = {"model": "plugin_kit:FailsToStart"} if fails == "plug-in" else {}
    with pytest.raises((PluginError, OSError)):
        assemble(config(model=model))
    assert await asyncio.to_thread(closed.wait, 20)


async def test_the_metrics_of_removed_plugins_are_dropped() -> None:
    async with serving(config()) as running:
        factory = running._prepare.args[0]  # type: ignore[attr-defined]
        metrics = factory._metrics.plugins
        metrics.counters("hook", "removed").calls["ok"] += 1
        rows = {
            (metric.name, labels)
            for metric in metrics.collect()
            for labels, _ in getattr(metric, "rows", ())
        }
        assert ("infergate_plugin_answers", ("hook", "guard")) in rows
        assert not any("removed" in labels for _, labels in rows)
