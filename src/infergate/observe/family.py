"""Metric families with lazily created samples.

Thousands of busy routes have hundreds of thousands of samples. A family therefore holds rows, each
with label values and a number or a histogram. The number of rows is a tenth of the number of
samples. Rows are created while they are read, and are sent to another process in batches, so that
other tasks can run in between.

*Rule.* Only a list of rows can be iterated several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import accumulate, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from infergate.core.duration_histogram import REQUEST_BUCKETS, DurationHistogram

T = TypeVar("T")

_UNITS: Final = ("seconds", "bytes")
_NO_EXEMPLARS: Final[Mapping[int, Exemplar]] = {}
_BATCH_ROWS: Final = 256
"""Rows per batch. Creating a batch takes about a millisecond."""


class HistogramValue(NamedTuple):
    """The value of a histogram for one combination of labels."""

    counts: tuple[int, ...]
    """Counts per bucket, not cumulative. The last count is for values above all bounds."""
    sum: float
    exemplars: Mapping[int, Exemplar] = _NO_EXEMPLARS
    """Exemplars by the index of the bucket."""


Labels = tuple[str, ...]
Row = tuple[Labels, float | HistogramValue]


def histogram_value(
    histogram: DurationHistogram, exemplars: Mapping[int, Exemplar] | None = None
) -> HistogramValue:
    """Return a snapshot of ``histogram``."""
    return HistogramValue(
        tuple(histogram.counts), histogram.sum, dict(exemplars) if exemplars else _NO_EXEMPLARS
    )


class MetricFamily(Metric):
    """A metric family with lazy rows. prometheus_client handles it like any other family."""

    def __init__(  # noqa: PLR0913 - the properties of a family
        self,
        kind: str,
        name: str,
        documentation: str,
        labels: Labels,
        rows: Iterable[Row],
        *,
        unit: str = "",
        bounds: tuple[float, ...] = (),
    ) -> None:
        """Create a family. ``kind`` is ``counter``, ``gauge`` or ``histogram``. ``labels`` are the
        label names; ``bounds`` are the bucket bounds of a histogram, without infinity."""
        self._samples: list[Sample] | None = None
        super().__init__(name, documentation, kind, unit)
        self.labels: Final = labels
        self.rows = rows
        self.bounds: Final = bounds

    @property
    def samples(self) -> list[Sample]:
        """All samples as prometheus_client objects."""
        if self._samples is None:
            self._samples = self._make_samples()
        return self._samples

    @samples.setter
    def samples(self, value: list[Sample]) -> None:
        """Ignore the empty list that the constructor of ``Metric`` sets."""

    def _make_samples(self) -> list[Sample]:
        kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        family = kinds.get(self.type, HistogramMetricFamily)(self.name, "", labels=self.labels)
        for labels, value in self.rows:
            if isinstance(value, HistogramValue):
                family.add_metric(labels, self._buckets(value), value.sum)
            else:
                family.add_metric(labels, value)
        samples: list[Sample] = family.samples
        return samples

    def _buckets(self, value: HistogramValue) -> list[tuple[Any, ...]]:
        bounds = map(floatToGoString, (*self.bounds, math.inf))
        counts = zip(bounds, map(float, accumulate(value.counts)), strict=True)
        return [
            (*bucket, value.exemplars[index]) if index in value.exemplars else bucket
            for index, bucket in enumerate(counts)
        ]

    def with_rows(self, rows: Iterable[Row]) -> MetricFamily:
        """Return a copy of this family with ``rows`` instead of its own rows."""
        family = copy(self)
        family.rows, family._samples = rows, None  # noqa: SLF001 - its own copy
        return family


class MetricSpec(NamedTuple, Generic[T]):
    """A metric that is read from objects, such as the counters of each backend."""

    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    name: str
    """The name of the metric. The name of a metric with a unit ends with the unit."""
    read: Callable[[T], float | HistogramValue | Mapping[Any, float] | None]
    """Returns the value of an object, or None if the object has no value. With ``labels``, it
    returns a mapping from label values, or from tuples of label values, to numbers."""
    labels: Labels
    """The labels in addition to the labels of the objects."""
    documentation: str
    bounds: tuple[float, ...] = REQUEST_BUCKETS
    """The bucket bounds of a histogram."""

    def family(self, labels: Labels, objects: Iterable[tuple[Labels, T]]) -> MetricFamily:
        """Return the metric family of ``objects``. Each object comes with its values of
        ``labels``."""
        unit = self.name.rpartition("_")[2]
        return MetricFamily(
            self.kind,
            self.name,
            self.documentation,
            (*labels, *self.labels),
            self._rows(objects),
            unit=unit if unit in _UNITS else "",
            bounds=self.bounds if self.kind == "histogram" else (),
        )

    def _rows(self, objects: Iterable[tuple[Labels, T]]) -> Iterator[Row]:
        for labels, item in objects:
            value = self.read(item)
            if isinstance(value, Mapping):
                for key, number in list(value.items()):
                    yield (*labels, *(key if isinstance(key, tuple) else (str(key),))), number
            elif value is not None:
                yield labels, value


def in_batches(families: Iterable[Metric]) -> Iterator[list[Metric]]:
    """Yield ``families`` in batches of limited size, with their rows as lists. A batch may contain
    only a part of a family."""
    batch: list[Metric] = []
    available = _BATCH_ROWS
    for family in families:
        if not isinstance(family, MetricFamily):
            batch.append(family)
            continue
        rows = iter(family.rows)
        while True:
            chunk = list(islice(rows, available))
            batch.append(family.with_rows(chunk))
            available -= len(chunk)
            if available:
                break
            yield batch
            batch, available = [], _BATCH_ROWS
    yield batch
