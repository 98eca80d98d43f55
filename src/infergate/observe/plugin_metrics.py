"""Metrics of plug-ins: request hooks, Python models and transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import PluginCounters
from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.observe.family import MetricFamily, histogram_value, rows_by_label

HOOK: Final = "hook"
MODEL: Final = "model"
TRANSFORM: Final = "transform"
PluginKey = tuple[str, str]
"""The kind of a plug-in, and the name of the hook or backend or the class of the transform."""


class PluginMetrics(Collector):
    """The counters of plug-ins of a process. ``names`` returns the configured plug-ins, or None if
    they are unknown. A scrape drops the counters of all others."""

    def __init__(self) -> None:
        self.names: Callable[[], AbstractSet[PluginKey] | None] = lambda: None
        self._counters: Final[dict[PluginKey, PluginCounters]] = {}

    def counters(self, kind: str, name: str) -> PluginCounters:
        """Return the counters of a plug-in. They are created on first use."""
        return self._counters.setdefault((kind, name), PluginCounters())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        names = self.names()
        if names is not None:
            for key in self._counters.keys() - names:
                del self._counters[key]
        labels = ("kind", "plugin")
        rows = list(self._counters.items())
        yield MetricFamily(
            "counter",
            "infergate_plugin_calls",
            "Calls of plug-ins by result: ok, rejected (on purpose), error, timeout, cancelled (by "
            "the client), invalid (result), or refused (too many calls hang).",
            (*labels, "result"),
            rows_by_label((key, counters.calls) for key, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_plugin_answers",
            "Inferences that a request hook answered without the model.",
            labels,
            ((key, counters.answers) for key, counters in rows if key[0] == HOOK),
        )
        yield MetricFamily(
            "histogram",
            "infergate_plugin_seconds",
            "Duration of calls of plug-ins that ended in time, in seconds.",
            labels,
            ((key, histogram_value(counters.seconds)) for key, counters in rows),
            unit="seconds",
            bounds=REQUEST_BUCKETS,
        )
        yield MetricFamily(
            "gauge",
            "infergate_plugin_hanging_calls",
            "Calls of plug-ins that have not ended although their callers have stopped waiting.",
            labels,
            ((key, counters.hanging) for key, counters in rows),
        )
