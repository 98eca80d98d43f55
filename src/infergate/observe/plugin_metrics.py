"""Metrics of plug-ins: request hooks, Python models and transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import PluginCounters
from infergate.observe.family import MetricSpec, histogram_value

HOOK: Final = "hook"
MODEL: Final = "model"
TRANSFORM: Final = "transform"
PluginKey = tuple[str, str]
"""The kind of a plug-in, and the hook's name, the backend's name or the transform's class."""

_METRICS: Final[tuple[MetricSpec[tuple[str, PluginCounters]], ...]] = (
    MetricSpec("counter", "infergate_plugin_calls", lambda each: each[1].calls, ("result",),
        "Calls of plug-ins by result: ok, rejected (on purpose), error, timeout, cancelled (by "
        "the client), invalid (result), or refused (too many calls hang)."),
    MetricSpec("counter", "infergate_plugin_answers",
        lambda each: each[1].answers if each[0] == HOOK else None, (),
        "Inferences that a request hook answered without the model."),
    MetricSpec("histogram", "infergate_plugin_seconds",
        lambda each: histogram_value(each[1].seconds), (),
        "Duration of calls of plug-ins that ended in time, in seconds."),
    MetricSpec("gauge", "infergate_plugin_hanging_calls", lambda each: each[1].hanging, (),
        "Calls of plug-ins that have not ended although their callers have stopped waiting."),
)  # fmt: skip


class PluginMetrics(Collector):
    """The counters of plug-ins of a process. ``names`` returns the configured plug-ins, or None if
    unknown. A scrape drops the counters of all other plug-ins."""

    def __init__(self) -> None:
        self.names: Callable[[], AbstractSet[PluginKey] | None] = lambda: None
        self._counters: Final[dict[PluginKey, PluginCounters]] = {}

    def counters(self, kind: str, name: str) -> PluginCounters:
        """Return the counters of a plug-in, which are created on first use."""
        return self._counters.setdefault((kind, name), PluginCounters())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        names = self.names()
        if names is not None:
            for key in self._counters.keys() - names:
                del self._counters[key]
        plugins = [(key, (key[0], counters)) for key, counters in self._counters.items()]
        for spec in _METRICS:
            yield spec.family(("kind", "plugin"), plugins)
