"""Whether a soak found something. Pure: samples and counts in, words out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MIB = 1 << 20
WARM = 1 / 3
"""The part of a run that is warm-up: caches fill, arenas grow."""
MOST_SLOPE = 1.0
"""MiB a minute after that. A leak of ten bytes a request shows in no run of this length."""
LEAST_GROWTH = 8.0
"""MiB that are no leak, however steep: memory comes in arenas."""
SLACK = 3
"""Descriptors or tasks more at the end than at the beginning that are none."""


@dataclass(frozen=True)
class Sample:
    """A process at ``at`` seconds of the run; ``resident`` in bytes."""

    at: float
    resident: int
    descriptors: int
    tasks: int
    requests: int = 0
    streams: int = 0


@dataclass
class Counts:
    """What clients saw. Errors by their words; one is explained by a fault that was made."""

    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: Counter[str] = field(default_factory=Counter)


def slope(samples: Sequence[Sample]) -> float:
    """MiB a minute that the resident memory grew after the warm-up, by least squares."""
    steady = _steady(samples)
    if len(steady) < 2:
        return 0.0
    times = [each.at / 60 for each in steady]
    sizes = [each.resident / MIB for each in steady]
    time, size = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((each - time) ** 2 for each in times)
    shared = sum((a - time) * (b - size) for a, b in zip(times, sizes, strict=True))
    return shared / spread if spread else 0.0


def growth(samples: Sequence[Sample]) -> float:
    """MiB between the first and the last quarter of that, by their medians."""
    steady = _steady(samples)
    quarter = max(1, len(steady) // 4)
    first, last = (
        statistics.median(each.resident for each in part)
        for part in (steady[:quarter], steady[-quarter:])
    )
    return (last - first) / MIB


def _steady(samples: Sequence[Sample]) -> Sequence[Sample]:
    if not samples:
        return ()
    end = samples[-1].at
    return [each for each in samples if each.at >= end * WARM]


def troubles(
    name: str, before: Sample, samples: Sequence[Sample], after: Sample, complaints: str
) -> list[str]:
    """What is wrong with the process ``name``: ``before`` the traffic, ``samples`` under it, and
    ``after`` everybody has gone."""
    found = []
    steepness = slope(samples)
    if samples and steepness > MOST_SLOPE and growth(samples) > LEAST_GROWTH:
        found.append(f"{name}: memory grows by {steepness:.1f} MiB a minute")
    if after.descriptors > before.descriptors + SLACK:
        found.append(f"{name}: {before.descriptors} descriptors became {after.descriptors}")
    if after.tasks > before.tasks + SLACK:
        found.append(f"{name}: {before.tasks} tasks became {after.tasks}")
    if after.requests or after.streams:
        left = f"{after.requests} requests and {after.streams} streams"
        found.append(f"{name}: {left} are counted, though all clients are gone")
    if complaints:
        found.append(f"{name} complains:\n{complaints}")
    return found


def errors(counts: Counts) -> list[str]:
    """What clients met that no fault explains, and kinds of traffic that never went well."""
    found = [f"{count} times {words}" for words, count in counts.unexplained.most_common()]
    if not counts.good:
        found.append("nothing was answered")
    return found


def table(name: str, before: Sample, samples: Sequence[Sample], after: Sample) -> str:
    """The figures of a process in one line."""
    peak = max((each.resident for each in (*samples, after)), default=0)
    return (
        f"{name}: RSS {before.resident / MIB:.0f} → {after.resident / MIB:.0f} MiB "
        f"(at most {peak / MIB:.0f}), slope {slope(samples):+.2f} MiB/min; "
        f"descriptors {before.descriptors} → {after.descriptors}; "
        f"tasks {before.tasks} → {after.tasks}"
    )
