"""A family of metrics whose samples are made when somebody asks for them.

*Strategy.* Thousands of routes that are busy have hundreds of thousands of samples. As rows (labels
and what is counted under them) they are a tenth of that, are made one after another while they are
read, and go to another process in pieces: so nobody is kept waiting for all of them.
*Rule.* Rows can be gone through once, unless they are a list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from infergate.core.times import Times

_NO_EXEMPLARS: Final[Mapping[int, Exemplar]] = {}
_AT_ONCE: Final = 256
"""Rows of a piece: about a millisecond's work."""


class Histogram(NamedTuple):
    """What a histogram tells under one combination of labels."""

    counts: tuple[int, ...]
    """By bound, not added up; at last those beyond all of them."""
    sum: float
    exemplars: Mapping[int, Exemplar] = _NO_EXEMPLARS
    """By the place of their bucket."""


Labels = tuple[str, ...]
Row = tuple[Labels, float | Histogram]


def times(told: Times, exemplars: Mapping[int, Exemplar] | None = None) -> Histogram:
    """As they are now."""
    return Histogram(tuple(told.counts), told.sum, dict(exemplars) if exemplars else _NO_EXEMPLARS)


class Family(Metric):
    """To prometheus_client, a family as any other."""

    def __init__(  # noqa: PLR0913 - what a family has
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
        """``kind`` is ``counter``, ``gauge`` or ``histogram``, which has ``bounds``, but for
        the infinite one. ``labels`` are their names, ``rows`` have their values."""
        self._samples: list[Sample] | None = None
        super().__init__(name, documentation, kind, unit)
        self.labels: Final = labels
        self.rows = rows
        self.bounds: Final = bounds

    @property
    def samples(self) -> list[Sample]:
        """All of them, as the library makes them."""
        if self._samples is None:
            self._samples = self._made()
        return self._samples

    @samples.setter
    def samples(self, none: list[Sample]) -> None:
        """The library's constructor begins with none."""

    def _made(self) -> list[Sample]:
        kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        family = kinds.get(self.type, HistogramMetricFamily)(self.name, "", labels=self.labels)
        for labels, value in self.rows:
            if isinstance(value, Histogram):
                family.add_metric(labels, self._buckets(value), value.sum)
            else:
                family.add_metric(labels, value)
        samples: list[Sample] = family.samples
        return samples

    def _buckets(self, told: Histogram) -> list[tuple[Any, ...]]:
        bounds = map(floatToGoString, (*self.bounds, math.inf))
        counts = zip(bounds, map(float, accumulate(told.counts)), strict=True)
        return [
            (*bucket, told.exemplars[place]) if place in told.exemplars else bucket
            for place, bucket in enumerate(counts)
        ]

    def of(self, rows: Iterable[Row]) -> Family:
        """The same family with other rows."""
        return Family(
            self.type,
            self.name,
            self.documentation,
            self.labels,
            rows,
            unit=self.unit,
            bounds=self.bounds,
        )


def in_pieces(families: Iterable[Metric]) -> Iterator[list[Metric]]:
    """``families``, as many of their rows at a time as one may make without keeping others waiting:
    a family may be in several pieces. Rows are lists then."""
    piece: list[Metric] = []
    room = _AT_ONCE
    for family in families:
        if not isinstance(family, Family):
            piece.append(family)
            continue
        rows = iter(family.rows)
        while True:
            some = list(islice(rows, room))
            piece.append(family.of(some))
            room -= len(some)
            if room:
                break
            yield piece
            piece, room = [], _AT_ONCE
    yield piece
