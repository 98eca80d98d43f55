"""What was counted of seconds, as histograms that a scrape reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from prometheus_client.core import Exemplar, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from infergate.core.times import OWN, REQUEST, Times


def _told(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, (*bounds, float("inf"))))


REQUEST_BOUNDS: Final = _told(REQUEST)
OWN_BOUNDS: Final = _told(OWN)


def tell(
    family: HistogramMetricFamily,
    labels: tuple[str, ...],
    times: Times,
    bounds: tuple[str, ...],
    exemplars: Mapping[int, Exemplar] = MappingProxyType({}),
) -> None:
    """Add ``times``, of such ``bounds``, to ``family``; ``exemplars`` by the place of their
    bucket."""
    counts = map(float, accumulate(times.counts))
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = [
        (bound, count, exemplars[place]) if place in exemplars else (bound, count)
        for place, (bound, count) in enumerate(zip(bounds, counts, strict=True))
    ]
    family.add_metric(labels, buckets, times.sum)
