"""The plug-ins of the running gateway. They are created before the other parts of a configuration
are built. A reload creates them in a thread, and keeps unchanged plug-ins."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from infergate.backends.base import Backend
from infergate.config import protocols
from infergate.config.plugins import HookConfig, PluginStepConfig
from infergate.config.routes import RouteConfig
from infergate.config.schema import BackendConfig, Config
from infergate.config.transforms import plugin_steps
from infergate.core.limits import Limits
from infergate.gateway.hooked_route import ConfiguredHook, HookedRoute
from infergate.gateway.route_layers import RouteLayer
from infergate.observe.metrics import Metrics
from infergate.observe.plugin_metrics import HOOK, MODEL, TRANSFORM, PluginKey
from infergate.plugin_host.instances import CREATE_SECONDS
from infergate.plugin_host.loading import PluginError
from infergate.plugin_host.runner import PluginRunner
from infergate.runtime.layers import LayerFactory

if TYPE_CHECKING:
    from infergate.backends.python_model import PythonModelBackend


@dataclass(frozen=True, slots=True)
class HostedPlugins:
    """The request hooks by name, and the transforms with their configurations in the order of
    routes and steps. Python models are not included, because they belong to their backends."""

    hooks: Mapping[str, ConfiguredHook] = field(default_factory=dict)
    transforms: Sequence[tuple[PluginStepConfig, PluginRunner]] = ()

    @property
    def runners(self) -> Iterator[PluginRunner]:
        """The runners of all plug-ins."""
        yield from (hook.runner for hook in self.hooks.values())
        yield from (runner for _, runner in self.transforms)

    def unchanged(self, old: Config, new: Config) -> HostedPlugins:
        """Return the plug-ins whose configuration is the same in ``new`` as in ``old``, from which
        they were created."""
        hooks = {
            name: hook
            for name, hook in self.hooks.items()
            if old.hooks[name] == new.hooks.get(name)
        }
        unmatched = _transform_steps(new)
        kept = []
        for config, runner in self.transforms:
            if config in unmatched:
                unmatched.remove(config)
                kept.append((config, runner))
        return HostedPlugins(hooks, kept)

    def runner_of(self, step: PluginStepConfig) -> PluginRunner:
        """Return the runner of ``step``, which must be the object in the configuration, not a
        copy."""
        return next(runner for config, runner in self.transforms if config is step)

    def hook_layer(self, limits: Limits) -> LayerFactory:
        """Return the factory of the layers that run the hooks of routes."""

        def make(route: RouteConfig) -> RouteLayer | None:
            if not route.hooks:
                return None
            hooks = [self.hooks[name] for name in route.hooks]
            return partial(HookedRoute, hooks=hooks, limits=limits)

        return make


NO_PLUGINS: Final = HostedPlugins()


@dataclass(slots=True)
class _PreparedPlugins:
    """The plug-ins of ``config``. ``created`` and ``models`` are the new plug-ins among them."""

    config: Config
    hosted: HostedPlugins = NO_PLUGINS
    created: list[PluginRunner] = field(default_factory=list)
    models: dict[str, PythonModelBackend] = field(default_factory=dict)

    def discard(self) -> None:
        """Close the new plug-ins. Blocks the calling thread."""
        for runner in self.created:
            runner.discard()
        for model in self.models.values():
            model.discard()


class PluginFactory:
    """Creates the plug-ins of configurations. ``metrics`` supplies their counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._lock: Final = threading.Lock()
        self._latest: _PreparedPlugins | None = None
        """The result of the latest call of ``begin``, or None after ``abandon``."""
        self._prepared: _PreparedPlugins | None = None
        """The plug-ins that ``prepare`` created, or None after ``release_ownership`` or
        ``abandon``."""

    def begin(self, config: Config) -> _PreparedPlugins:
        """Return the argument of ``prepare`` for ``config``. From this call on, ``abandon`` affects
        ``config``, even before the thread that calls ``prepare`` has started."""
        self.abandon()
        prepared = self._latest = _PreparedPlugins(config)
        return prepared

    def prepare(
        self,
        prepared: _PreparedPlugins,
        limits: Limits,
        kept: HostedPlugins,
        backends: Mapping[str, Backend],
    ) -> None:
        """Create the plug-ins of ``prepared`` except those in ``kept`` and ``backends``. Blocks the
        calling thread. Raises PluginError."""
        try:
            self._create_hooks_and_transforms(prepared, kept)
            for name, backend in prepared.config.backends.items():
                if backend.protocol == protocols.PYTHON and name not in backends:
                    prepared.models[name] = self._make_model(name, backend, limits)
                    self._check_not_abandoned(prepared)
            with self._lock:
                self._check_not_abandoned(prepared)
                self._prepared = prepared
        except PluginError:
            prepared.discard()
            raise

    def abandon(self) -> None:
        """Discard the plug-ins that ``prepare`` has created. A ``prepare`` that is still running
        finishes the plug-in in progress, then fails and discards its plug-ins."""
        with self._lock:
            self._latest = None
            unused, self._prepared = self._prepared, None
        if unused is not None:
            threading.Thread(target=unused.discard, name="infergate plug-ins", daemon=True).start()

    @property
    def hosted(self) -> HostedPlugins:
        """The hooks and transforms of the prepared configuration."""
        assert self._prepared is not None
        return self._prepared.hosted

    def model(self, name: str) -> Backend:
        """Return the Python model backend ``name`` of the prepared configuration."""
        assert self._prepared is not None
        return self._prepared.models[name]

    def release_ownership(self) -> None:
        """Transfer ownership of the prepared plug-ins to the gateway that was built with them."""
        self._prepared = None

    def _check_not_abandoned(self, prepared: _PreparedPlugins) -> None:
        if prepared is not self._latest:
            raise PluginError("the configuration was abandoned")

    def _create_hooks_and_transforms(self, prepared: _PreparedPlugins, kept: HostedPlugins) -> None:
        """Create the hooks and transforms of ``prepared`` except those in ``kept``. Raises
        PluginError."""
        hooks: dict[str, ConfiguredHook] = {}
        transforms: list[tuple[PluginStepConfig, PluginRunner]] = []
        available = list(kept.transforms)
        for name, hook in prepared.config.hooks.items():
            if (configured := kept.hooks.get(name)) is None:
                configured = self._make_hook(name, hook)
                prepared.created.append(configured.runner)
                self._check_not_abandoned(prepared)
            hooks[name] = configured
        for step in _transform_steps(prepared.config):
            match = next((item for item in available if item[0] == step), None)
            if match is None:
                runner = self._make_transform(step)
                prepared.created.append(runner)
                self._check_not_abandoned(prepared)
            else:
                available.remove(match)
                runner = match[1]
            transforms.append((step, runner))
        prepared.hosted = HostedPlugins(hooks, transforms)

    def _make_hook(self, name: str, config: HookConfig) -> ConfiguredHook:
        from infergate.assembly.plugins import make_hook  # noqa: PLC0415 - only if configured

        runner = make_hook(name, config, self._metrics.plugins.counters(HOOK, name))
        return ConfiguredHook(runner, config.timeout, config.on_error == "ignore")

    def _make_transform(self, config: PluginStepConfig) -> PluginRunner:
        from infergate.assembly.plugins import make_transform  # noqa: PLC0415 - only if configured

        counters = self._metrics.plugins.counters(TRANSFORM, config.transform)
        return make_transform(config, counters)

    def _make_model(self, name: str, config: BackendConfig, limits: Limits) -> PythonModelBackend:
        from infergate.assembly.plugins import make_python_backend  # noqa: PLC0415 - only if used

        plugin_counters = self._metrics.plugins.counters(MODEL, name)
        queue_counters = self._metrics.backends.backend_counters(name)
        return make_python_backend(name, config, limits, plugin_counters, queue_counters)


def plugin_names(config: Config) -> set[PluginKey]:
    """Return the metric labels of the plug-ins of ``config``."""
    models = (name for name, item in config.backends.items() if item.protocol == protocols.PYTHON)
    return {
        *((HOOK, name) for name in config.hooks),
        *((MODEL, name) for name in models),
        *((TRANSFORM, step.transform) for step in _transform_steps(config)),
    }


def plugin_seconds(config: Config) -> float:
    """Return the time limit in seconds of each step that creates a plug-in of ``config`` (the
    constructor, ``start``, or reading metadata or names), or 0 without plug-ins."""
    return CREATE_SECONDS if plugin_names(config) else 0.0


def _transform_steps(config: Config) -> list[PluginStepConfig]:
    return [step for route in config.routes for step in plugin_steps(route.transforms)]
