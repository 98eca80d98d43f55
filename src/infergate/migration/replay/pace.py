"""Decides when each inference of a replay is due. This module has no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """The pace of a replay: ``rate`` inferences per second, or ``speed`` times the recorded pace.
    If both are None, inferences are sent as fast as possible."""

    speed: float | None = 1.0
    rate: float | None = None
    _first_time: float | None = None

    def due(self, index: int, time: float) -> float:
        """Return the seconds from the beginning of the replay to inference ``index`` (from 0),
        which was recorded at ``time`` (seconds since the Unix epoch)."""
        if self.rate is not None:
            return index / self.rate
        if self.speed is None:
            return 0.0
        if self._first_time is None:
            self._first_time = time
        return max(0.0, (time - self._first_time) / self.speed)
