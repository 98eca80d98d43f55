"""The console's demo: its servers and traffic, and which configurations offer it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from infergate.config.load import load
from infergate.config.schema import Config
from infergate.core.errors import GatewayError, Kind
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import RecentRequests
from infergate.runtime.assemble import assemble
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.console.demo import ConsoleDemo, demo_of, is_demo
from infergate.runtime.console.sources import SingleProcess
from infergate.runtime.running import RunningGateway
from running_gateways import FREE, quiet_config, serving
from waiting import until

LISTENERS = dict.fromkeys(("http", "grpc", "admin"), FREE)


def test_the_configuration_without_a_file_is_the_demo() -> None:
    assert is_demo(Config.default())
    assert is_demo(quiet_config(listeners=LISTENERS))


@pytest.mark.parametrize(
    "sections",
    [
        {"listeners": {"admin": {"address": "0.0.0.0:8002"}}},
        {"listeners": {"http": {"address": "0.0.0.0:8000"}}},
        {"listeners": {"admin": {"address": "localhost:8002"}}},
        {"routes": ({"model": "m", "backend": "demo"},)},
        {"backends": {"demo": {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:9",)}}},
    ],
)
def test_other_configurations_are_not_the_demo(sections: dict[str, Any]) -> None:
    assert not is_demo(quiet_config(**sections))


class DemoHarness:
    """A running gateway with the demo's configuration, and its ``ConsoleDemo``."""

    def __init__(self, gateway: RunningGateway, history: ConfigHistory) -> None:
        self.gateway = gateway
        self.history = history
        source = SingleProcess(lambda: gateway, Metrics(), RecentRequests())
        self.demo = ConsoleDemo(source, history, assemble)
        gateway.demo = self.demo


@pytest.fixture
async def running() -> AsyncIterator[DemoHarness]:
    history = ConfigHistory()
    async with serving(quiet_config(listeners=LISTENERS), history=history) as gateway:
        yield DemoHarness(gateway, history)


async def test_the_demo_has_servers_that_break_and_are_repaired(running: DemoHarness) -> None:
    demo, original = running.demo, running.gateway.config
    with pytest.raises(GatewayError, match="is not running"):
        await demo.perform({"action": "break"})
    with pytest.raises(GatewayError, match="must be one of"):
        await demo.perform({"action": ["x"]})
    assert await demo.perform({"action": "start"}) == {
        "running": True, "traffic": True, "broken": [],
    }  # fmt: skip
    assert set(running.gateway.config.backends) == {
        "triton", "legacy-trt", "graphpipe", "tf-serving", "demo",
    }  # fmt: skip
    backend = next(each for each in running.gateway.gateway.backends if each.name == "triton")
    stats = lambda: list(backend.endpoint_stats())  # type: ignore[attr-defined]  # noqa: E731
    await until(lambda: all(each.ok for each in stats()))
    assert (await demo.perform({"action": "break"}))["broken"] == ["two"]
    await until(lambda: any(each.failed for each in stats()))
    assert (await demo.perform({"action": "repair"}))["broken"] == []
    assert (await demo.perform({"action": "stop"}))["running"] is False
    assert running.gateway.config == original
    events = [event["text"] for event in running.history.events.as_json(0)]
    assert events[:2] == ["a new configuration is active (demo)"] * 2


async def test_a_server_that_cannot_start_leaves_nothing_behind(running: DemoHarness) -> None:
    started: list[RunningGateway] = []

    def make(config: Config) -> RunningGateway:
        if started:
            raise GatewayError(Kind.INTERNAL, "no second server")
        started.append(assemble(config))
        return started[-1]

    demo = ConsoleDemo(running.demo._source, running.history, make)
    with pytest.raises(GatewayError, match="no second server"):
        await demo.perform({"action": "start"})
    assert demo.as_json() == {"running": False, "traffic": False, "broken": []}
    assert is_demo(running.gateway.config)


async def test_after_a_reload_with_another_configuration_the_demo_is_not_offered(
    running: DemoHarness,
) -> None:
    demo, gateway = running.demo, running.gateway
    source = SingleProcess(lambda: gateway, Metrics(), RecentRequests())
    await demo.perform({"action": "start"})
    assert demo_of(gateway, source, running.history, assemble) is demo
    other = quiet_config(listeners=LISTENERS, routes=({"model": "m", "backend": "demo"},))
    await gateway.reload(other)
    assert demo_of(gateway, source, running.history, assemble) is None
    for action in ("start", "stop", "break"):
        with pytest.raises(GatewayError, match="this action needs the configuration of the demo"):
            await demo.perform({"action": action})
    await until(lambda: not demo.as_json()["traffic"])
    assert gateway.config == other


def test_the_example_file_config_demo_yaml_is_the_demo() -> None:
    assert is_demo(load(Path(__file__).parents[4] / "config" / "demo.yaml", {}))
