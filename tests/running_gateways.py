"""Assembled gateways that run in a test's own process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import plugin_kit
from infergate.config.schema import Config
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway

FREE = {"address": "127.0.0.1:0"}
"""A listener on any free port."""


def quiet_config(**sections: Any) -> Config:
    """Return a configuration with an HTTP listener and the embedded models, without an access log
    or helper processes. ``sections`` replace whole sections of the configuration."""
    return Config.model_validate(
        {
            "log": {"access": False},
            "helpers": 0,
            "listeners": {"http": FREE, "grpc": None, "admin": None},
            "backends": {"demo": {"protocol": "builtin"}},
            "routes": ({"model": "*", "backend": "demo"},),
            **sections,
        }
    )


@asynccontextmanager
async def serving(config: Config, **options: Any) -> AsyncIterator[RunningGateway]:
    """Run the gateway of ``config``. ``options`` are further arguments of ``assemble``."""
    running = assemble(config, **options)
    await running.start()
    try:
        yield running
    finally:
        await running.stop(0)


class WatchedConstructor:
    """Records the created ``plugin_kit.Double`` models. The constructor of a model with
    the factor 3 sets ``entered``, and returns when ``release`` is set or after 60 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: list[plugin_kit.Double] = []
        self.entered, self.release = threading.Event(), threading.Event()
        create = plugin_kit.Double.__init__

        def init(model: plugin_kit.Double, options: plugin_kit.DoubleOptions) -> None:
            create(model, options)
            self.created.append(model)
            if options.factor == 3:
                self.entered.set()
                self.release.wait(60)

        monkeypatch.setattr(plugin_kit.Double, "__init__", init)
