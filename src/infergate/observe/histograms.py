"""The bounds of histograms, as a scrape reads them."""

from __future__ import annotations

from typing import Final

from prometheus_client.utils import floatToGoString

from infergate.core.times import OWN, REQUEST


def _told(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, (*bounds, float("inf"))))


REQUEST_BOUNDS: Final = _told(REQUEST)
OWN_BOUNDS: Final = _told(OWN)
