"""What was counted of seconds, as histograms that a scrape reads."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from infergate.core.times import OWN, REQUEST, Times


def _told(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, (*bounds, float("inf"))))


REQUEST_BOUNDS: Final = _told(REQUEST)
OWN_BOUNDS: Final = _told(OWN)


def tell(
    family: HistogramMetricFamily, labels: tuple[str, ...], times: Times, bounds: tuple[str, ...]
) -> None:
    """Add ``times``, of such ``bounds``, to ``family``."""
    buckets = zip(bounds, map(float, accumulate(times.counts)), strict=True)
    family.add_metric(labels, list(buckets), times.sum)
