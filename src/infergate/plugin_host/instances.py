"""Creates plug-ins: loads the class, validates the options, and runs the constructor and ``start``
within time limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from infergate.core.counters import PluginCounters
from infergate.core.errors import Kind, Origin
from infergate.plugin_host.loading import PluginError, load_class, run_within
from infergate.plugin_host.options import OptionsError, read_options
from infergate.plugin_host.runner import FailureKinds, PluginRunner
from infergate.plugins.base import Plugin

P = TypeVar("P", bound=Plugin)

CREATE_SECONDS: Final = 600.0
"""Maximum duration of a constructor, of ``start``, and of reading a plug-in's names or metadata.
The constructor and ``start`` may load a model's weights."""
HOOK_FAILURES: Final = FailureKinds(Kind.INTERNAL, Kind.INTERNAL, Origin.GATEWAY)
MODEL_FAILURES: Final = FailureKinds(Kind.BACKEND_ERROR, Kind.BACKEND_GARBAGE, Origin.BACKEND)


def create_plugin(
    base: type[P], reference: str, group: str, options: Mapping[str, Any], label: str
) -> P:
    """Return a new instance of the plug-in ``reference``, which has the form that ``load_class``
    accepts. Blocks the calling thread. Raises PluginError, whose message begins with ``label``."""
    try:
        plugin_class = load_class(reference, group, base)
        values = read_options(plugin_class.options_type, options)
        return run_within(CREATE_SECONDS, f"creating '{reference}'", lambda: plugin_class(values))
    except (PluginError, OptionsError) as error:
        raise PluginError(f"{label}: {error}") from error


def start_plugin(
    plugin: Plugin, label: str, counters: PluginCounters, kinds: FailureKinds
) -> PluginRunner:
    """Call ``start`` of ``plugin``, and return the plug-in's runner. Blocks the calling thread.
    Raises PluginError, whose message begins with ``label``."""
    runner = PluginRunner(plugin, label, counters, kinds)
    try:
        run_within(CREATE_SECONDS, "start", lambda: runner.start(CREATE_SECONDS))
    except PluginError as error:
        runner.stop_threads()
        raise PluginError(f"{label}: {error}") from error
    return runner
