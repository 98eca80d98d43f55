"""Creates the plug-ins that a configuration names. Every function blocks while plug-ins are
imported and created. A gateway that is serving calls these functions in a thread."""

from __future__ import annotations

from typing import Any

from infergate.backends.python_model import PythonModelBackend
from infergate.config.plugins import HookConfig, PluginStepConfig
from infergate.config.schema import BackendConfig
from infergate.core.counters import BackendCounters, PluginCounters
from infergate.core.limits import Limits
from infergate.core.messages import ModelMetadata
from infergate.plugin_host.instances import (
    CREATE_SECONDS,
    HOOK_FAILURES,
    MODEL_FAILURES,
    create_plugin,
    start_plugin,
)
from infergate.plugin_host.loading import BACKENDS, HOOKS, TRANSFORMS, PluginError, run_within
from infergate.plugin_host.results import InvalidResultError, check_metadata
from infergate.plugin_host.runner import PluginRunner
from infergate.plugin_host.transform_step import check_names
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel
from infergate.plugins.transform import TensorTransform


def make_hook(name: str, config: HookConfig, counters: PluginCounters) -> PluginRunner:
    """Create the request hook ``name``. Raises PluginError."""
    label = f"hook '{name}'"
    hook = create_plugin(RequestHook, config.hook, HOOKS, config.options, label)
    return start_plugin(hook, label, counters, HOOK_FAILURES)


def make_transform(config: PluginStepConfig, counters: PluginCounters) -> PluginRunner:
    """Create the transform of a step. Raises PluginError."""
    label = f"transform '{config.transform}'"
    abstract: Any = TensorTransform
    transform = create_plugin(abstract, config.transform, TRANSFORMS, config.options, label)
    try:
        run_within(CREATE_SECONDS, "reading names", lambda: check_names(transform))
    except PluginError as error:
        raise PluginError(f"{label}: {error}") from error
    return start_plugin(transform, label, counters, HOOK_FAILURES)


def make_python_backend(
    name: str,
    config: BackendConfig,
    limits: Limits,
    counters: PluginCounters | None = None,
    queue_counters: BackendCounters | None = None,
) -> PythonModelBackend:
    """Create the backend ``name`` and its model. Raises PluginError."""
    label = f"backend '{name}'"
    abstract: Any = PythonModel
    model = create_plugin(abstract, config.model, BACKENDS, config.options, label)
    metadata = read_metadata(model, label)
    return PythonModelBackend(
        name,
        start_plugin(model, label, counters or PluginCounters(), MODEL_FAILURES),
        metadata,
        limits,
        timeout=config.timeout,
        max_requests=config.limits.max_requests,
        max_queue=config.limits.max_queue,
        counters=queue_counters,
        priority_header=config.limits.priority_header,
    )


def read_metadata(model: PythonModel, label: str) -> ModelMetadata:
    """Return the checked metadata of ``model``. Raises PluginError."""
    try:
        metadata = run_within(CREATE_SECONDS, "reading metadata", lambda: model.metadata)
        return check_metadata(metadata)
    except (PluginError, InvalidResultError) as error:
        raise PluginError(f"{label}: {error}") from error
