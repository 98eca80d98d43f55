"""What several processes count, as one: their metrics added up.

*Rule 1.* Counters and histograms are added, and so are gauges: they tell of what is under way in
each process. What is no amount is in one of two tables.
*Rule 2.* What a process that is no more has counted still counts: a counter that falls would look
like one that began anew.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from infergate.observe.family import Family, Histogram, Labels
from infergate.observe.names import Names

_ALIKE: Final = frozenset(
    {
        "infergate_build",
        "infergate_config",
        "infergate_config_last_reload_successful",
        "infergate_config_loaded_timestamp_seconds",
    }
)
"""Families that all processes tell alike, or that one speaks for all of: the first that was added
is taken."""
_MOST: Final = frozenset({"infergate_config_generations", "infergate_draining"})
"""Gauges of which the largest is told."""
_LEAST: Final = frozenset({"infergate_certificate_expiry_seconds", "process_start_time_seconds"})
"""Those of which the smallest is: who alerts wants to know of the first."""
_AMOUNTS: Final = frozenset({"counter", "histogram", "summary"})
"""Types of families that only grow."""
_CREATED: Final = "_created"

_Key = tuple[str, tuple[tuple[str, str], ...]]


class Summed(Collector):
    """The families of all that were added, which may come in pieces."""

    def __init__(self) -> None:
        self._families: Final[dict[str, Metric]] = {}
        self._rows: Final[dict[str, dict[Labels, float | Histogram]]] = {}
        self._samples: Final[dict[str, dict[_Key, Sample]]] = {}
        """Of families that have no rows."""

    def add(self, families: Iterable[Metric], *, past: bool = False) -> None:
        """What a process tells. ``past``: it is no more, and only what it has counted matters."""
        for family in families:
            if past and family.type not in _AMOUNTS:
                continue
            self._families.setdefault(family.name, family)
            if isinstance(family, Family):
                _add_rows(self._rows.setdefault(family.name, {}), family)
            else:
                _add_samples(self._samples.setdefault(family.name, {}), family)

    def keep(self, names: Names) -> None:
        """Forget what is told of routes and backends that have none of these names."""
        for name, rows in self._rows.items():
            family = self._families[name]
            assert isinstance(family, Family)
            told = family.labels
            for labels in [k for k in rows if not names.has(dict(zip(told, k, strict=True)))]:
                del rows[labels]

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for name, family in self._families.items():
            if isinstance(family, Family):
                yield family.of(list(self._rows[name].items()))
            else:
                told = Metric(name, family.documentation, family.type, family.unit)
                told.samples = list(self._samples[name].values())
                yield told


def _add_rows(rows: dict[Labels, float | Histogram], family: Family) -> None:
    for labels, value in family.rows:
        known = rows.get(labels)
        if known is None:
            rows[labels] = value
        elif isinstance(known, Histogram):
            assert isinstance(value, Histogram)
            rows[labels] = _one(known, value)
        else:
            assert not isinstance(value, Histogram)
            rows[labels] = _together(family.name, known, value)


def _add_samples(samples: dict[_Key, Sample], family: Metric) -> None:
    if samples and family.name in _ALIKE:
        return
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        known = samples.get(key)
        if known is None:
            samples[key] = sample
        elif sample.name.endswith(_CREATED):
            samples[key] = sample._replace(value=min(known.value, sample.value))
        else:
            told = _together(family.name, known.value, sample.value)
            samples[key] = sample._replace(value=told)


def _together(family: str, one: float, other: float) -> float:
    if family in _LEAST:
        return min(one, other)
    return max(one, other) if family in _MOST else one + other


def _one(one: Histogram, other: Histogram) -> Histogram:
    """The latest exemplars of both."""
    exemplars = one.exemplars
    if other.exemplars:
        exemplars = dict(exemplars)
        for place, each in other.exemplars.items():
            known = exemplars.get(place)
            if known is None or _when(known) < _when(each):
                exemplars[place] = each
    counts = tuple(map(operator.add, one.counts, other.counts))
    return Histogram(counts, one.sum + other.sum, exemplars)


def _when(exemplar: Exemplar) -> float:
    return float(exemplar.timestamp or 0.0)
