"""Runs the contenders of a comparison in alternating rounds."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import load
from .load import Contender, Pace
from .results import Result, Runs

_TRIAL_REQUESTS = 24
_MIN_REQUESTS = 50
_FOUR_CONNECTIONS = Pace()


@dataclass(frozen=True)
class Comparison:
    """Contenders that answer the same requests: infergate's variants, then a peer. ``at`` is the
    value of the varied parameter at a point of a curve. Each run has at least ``min_requests``
    requests."""

    name: str
    contenders: tuple[Contender, ...]
    at: int = 0
    pace: Pace = _FOUR_CONNECTIONS
    min_requests: int = _MIN_REQUESTS


@dataclass(frozen=True)
class Rounds:
    """Runs ``count`` rounds of about ``seconds`` each. Temporary files are in ``folder``."""

    count: int
    seconds: float
    folder: Path

    def compared(self, group: Sequence[Comparison]) -> list[Result]:
        """Run all contenders of ``group`` in each round. The order alternates, so that a drift of
        the machine's speed affects all contenders alike."""
        schedule = [
            (comparison, contender, self._requests(comparison, contender))
            for comparison in group
            for contender in comparison.contenders
        ]
        runs: dict[tuple[int, str], list[load.Measured]] = {
            (id(comparison), contender.name): [] for comparison, contender, _ in schedule
        }
        names = ", ".join(dict.fromkeys(comparison.name for comparison in group))
        for turn in range(self.count):
            print(f"{names}: round {turn + 1} of {self.count}", file=sys.stderr)
            for comparison, contender, requests in schedule[:: -1 if turn % 2 else 1]:
                run = load.run(contender, requests, comparison.pace, self.folder)
                runs[id(comparison), contender.name].append(run)
        return [
            Result(
                comparison.name,
                tuple(
                    Runs(each.name, each.variant, tuple(runs[id(comparison), each.name]))
                    for each in comparison.contenders
                ),
                comparison.at,
            )
            for comparison in group
        ]

    def _requests(self, comparison: Comparison, contender: Contender) -> int:
        """Return the number of requests that take about ``seconds``. The trial runs also warm up
        the contender."""
        pace, min_requests = comparison.pace, comparison.min_requests
        trial = max(pace.connections, min(_TRIAL_REQUESTS, min_requests), pace.rate // 2)
        run = load.run(contender, trial, pace, self.folder)
        if pace.rate:
            return int(pace.rate * (load.SETTLE_SECONDS + self.seconds))
        if (count := int(run.per_second * self.seconds / 2)) > trial:
            run = load.run(contender, count, pace, self.folder)
        return max(min_requests, int(run.per_second * self.seconds))
