"""Aggregates the metrics of several processes.

*Rule 1.* Counters, histograms and gauges are added up, except the metrics in the tables below,
whose sum would have no meaning. The earliest creation time of a metric is kept.
*Rule 2.* The counters of exited processes remain part of the sums, because a counter that decreases
would look like a restart."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from infergate.observe.family import HistogramValue, Labels, MetricFamily
from infergate.observe.label_names import MetricNames

_TAKE_FIRST: Final = frozenset(
    {
        "infergate_build",
        "infergate_config",
        "infergate_config_last_reload_successful",
        "infergate_config_loaded_timestamp_seconds",
    }
)
"""Families that are equal in all processes, or that a process reports for all processes. Only the
family of the first process is used."""
_TAKE_MAX: Final = frozenset(
    {
        "infergate_cache_bytes",  # all workers share the memory
        "infergate_cache_entries",
        "infergate_config_generations",
        "infergate_draining",
    }
)
_TAKE_MIN: Final = frozenset({"infergate_certificate_expiry_seconds", "process_start_time_seconds"})
_CUMULATIVE_TYPES: Final = frozenset({"counter", "histogram", "summary"})
"""Types of families whose values never decrease."""
_CREATED: Final = "_created"

_Key = tuple[str, tuple[tuple[str, str], ...]]


class AggregatedMetrics(Collector):
    """The aggregate of all families that were added. Families may arrive in batches."""

    def __init__(self) -> None:
        self._families: Final[dict[str, Metric]] = {}
        self._rows: Final[dict[str, dict[Labels, float | HistogramValue]]] = {}
        self._samples: Final[dict[str, dict[_Key, Sample]]] = {}
        """Samples of families without rows."""

    def add(self, families: Iterable[Metric], *, has_exited: bool = False) -> None:
        """Add the families of a process. If the process ``has_exited``, add only its counters and
        histograms."""
        for family in families:
            if has_exited and family.type not in _CUMULATIVE_TYPES:
                continue
            self._families.setdefault(family.name, family)
            if isinstance(family, MetricFamily):
                _add_rows(self._rows.setdefault(family.name, {}), family)
            else:
                _add_samples(self._samples.setdefault(family.name, {}), family)

    def keep(self, names: MetricNames) -> None:
        """Drop the series of routes and backends that are not in ``names``."""
        for name, rows in self._rows.items():
            family = self._families[name]
            assert isinstance(family, MetricFamily)
            keys = family.labels
            for labels in [k for k in rows if not names.allows(dict(zip(keys, k, strict=True)))]:
                del rows[labels]

    def collect(self) -> Iterator[Metric]:
        """Yield the aggregated families."""
        for name, family in self._families.items():
            if isinstance(family, MetricFamily):
                yield family.with_rows(list(self._rows[name].items()))
            else:
                copy = Metric(name, family.documentation, family.type, family.unit)
                copy.samples = list(self._samples[name].values())
                yield copy


def _add_rows(rows: dict[Labels, float | HistogramValue], family: MetricFamily) -> None:
    for labels, value in family.rows:
        current = rows.get(labels)
        rows[labels] = value if current is None else _combine(family.name, current, value)


def _add_samples(samples: dict[_Key, Sample], family: Metric) -> None:
    if samples and family.name in _TAKE_FIRST:
        return
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        current = samples.get(key)
        if current is None:
            samples[key] = sample
        elif sample.name.endswith(_CREATED):
            samples[key] = sample._replace(value=min(current.value, sample.value))
        else:
            value = _combine(family.name, current.value, sample.value)
            samples[key] = sample._replace(value=value)


def _combine(family: str, first: Any, second: Any) -> Any:
    if isinstance(first, HistogramValue):
        return _add_histograms(first, second)
    if family in _TAKE_MIN:
        return min(first, second)
    return max(first, second) if family in _TAKE_MAX else first + second


def _add_histograms(first: HistogramValue, second: HistogramValue) -> HistogramValue:
    """Add two histograms. If both have an exemplar in a bucket, the later exemplar is kept."""
    exemplars = first.exemplars
    if second.exemplars:
        exemplars = dict(exemplars)
        for index, exemplar in second.exemplars.items():
            current = exemplars.get(index)
            if current is None or _timestamp(current) < _timestamp(exemplar):
                exemplars[index] = exemplar
    counts = tuple(map(operator.add, first.counts, second.counts))
    return HistogramValue(counts, first.sum + second.sum, exemplars)


def _timestamp(exemplar: Exemplar) -> float:
    return float(exemplar.timestamp or 0.0)
