"""The plug-ins of the running gateway. A reload creates new plug-ins in a thread, before the
configuration is built on the event loop; unchanged plug-ins are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.backends.base import Backend
from infergate.config import protocols
from infergate.config.plugins import HookConfig
from infergate.config.routes import RouteConfig
from infergate.config.schema import BackendConfig, Config
from infergate.core.limits import Limits
from infergate.gateway.hooked_route import ConfiguredHook, HookedRoute
from infergate.gateway.route_layers import RouteInferences, RouteLayer
from infergate.observe.metrics import Metrics
from infergate.observe.plugin_metrics import HOOK, MODEL, PluginKey
from infergate.runtime.layers import LayerFactory


class PluginFactory:
    """Creates plug-ins, or hands out those that ``prepare`` has created in advance. ``metrics`` has
    their counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._prepared: Final[dict[tuple[str, str], Any]] = {}

    def prepare(
        self,
        config: Config,
        limits: Limits,
        hooks: Mapping[str, ConfiguredHook],
        backends: Mapping[str, Backend],
    ) -> None:
        """Create the plug-ins of ``config`` except ``hooks`` and ``backends``, which are kept.
        Blocks the calling thread. Raises PluginError."""
        self._prepared.clear()
        for name, hook in config.hooks.items():
            if name not in hooks:
                self._prepared[HOOK, name] = self._make_hook(name, hook)
        for name, backend in config.backends.items():
            if backend.protocol == protocols.PYTHON and name not in backends:
                self._prepared[MODEL, name] = self._make_model(name, backend, limits)

    def hooks(
        self, config: Config, kept: Mapping[str, ConfiguredHook]
    ) -> Mapping[str, ConfiguredHook]:
        """Return the hooks of ``config`` by name. Raises PluginError."""
        return {
            name: kept.get(name)
            or self._prepared.pop((HOOK, name), None)
            or self._make_hook(name, hook)
            for name, hook in config.hooks.items()
        }

    def model(self, name: str, config: BackendConfig, limits: Limits) -> Backend:
        """Return the Python model backend ``name``. Raises PluginError."""
        prepared: Backend | None = self._prepared.pop((MODEL, name), None)
        return prepared or self._make_model(name, config, limits)

    def _make_hook(self, name: str, config: HookConfig) -> ConfiguredHook:
        from infergate.assembly.plugins import make_hook  # noqa: PLC0415 - only if configured

        runner = make_hook(name, config, self._metrics.plugins.counters(HOOK, name))
        return ConfiguredHook(runner, config.timeout, config.on_error == "ignore")

    def _make_model(self, name: str, config: BackendConfig, limits: Limits) -> Backend:
        from infergate.assembly.plugins import make_python_backend  # noqa: PLC0415 - as above

        plugin_counters = self._metrics.plugins.counters(MODEL, name)
        queue_counters = self._metrics.backends.backend_counters(name)
        return make_python_backend(name, config, limits, plugin_counters, queue_counters)


def plugin_names(config: Config) -> set[PluginKey]:
    """Return the plug-ins of ``config`` by their labels in metrics."""
    models = (name for name, item in config.backends.items() if item.protocol == protocols.PYTHON)
    return {*((HOOK, name) for name in config.hooks), *((MODEL, name) for name in models)}


def unchanged_hooks(
    previous: Mapping[str, ConfiguredHook], old: Config, new: Config
) -> Mapping[str, ConfiguredHook]:
    """Return the ``previous`` hooks with unchanged configuration, by name."""
    return {name: hook for name, hook in previous.items() if old.hooks[name] == new.hooks.get(name)}


def hook_layers(hooks: Mapping[str, ConfiguredHook], limits: Limits) -> LayerFactory:
    """Return the factory of the layers that run the hooks of routes."""

    def make(route: RouteConfig) -> RouteLayer | None:
        if not route.hooks:
            return None
        of_route = [hooks[name] for name in route.hooks]

        def layer(inner: RouteInferences) -> RouteInferences:
            return HookedRoute(inner, of_route, limits)

        return layer

    return make
