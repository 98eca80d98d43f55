"""Whether a soak found something. Pure: samples, counts and times in, words out."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

MIB = 1 << 20
WARM = 1 / 3
"""The part of a run that is warm-up: caches fill, arenas grow."""
MAX_SLOPE = 1.0
"""MiB a minute of a worker after that. A leak of ten bytes a request shows in no such run."""
MIN_GROWTH = 8.0
"""MiB of a worker that are no leak, however steep: memory comes in arenas, and several large
requests at once need more of them than there ever were before."""
SLACK = 3
"""Descriptors or tasks more at the end than at the beginning that are none."""


@dataclass(frozen=True)
class Size:
    """The memory of a process and of those it started, ``resident`` in bytes, at ``at`` seconds of
    the run."""

    at: float
    resident: int


@dataclass(frozen=True)
class State:
    """What else they hold."""

    resident: int
    open_descriptors: int
    tasks: int
    requests: int = 0
    streams: int = 0
    generations: int = 1


@dataclass
class Outage:
    """What was done to a server, from ``began`` until ``ended``, when all was well again and the
    gateway knew (seconds, on one clock)."""

    name: str
    began: float
    ended: float = math.inf


@dataclass
class Outages:
    """All there were, and the one there is."""

    all: list[Outage] = field(default_factory=list)

    def explain(self, began: float, ended: float) -> bool:
        """Whether what failed between these times met one."""
        return any(each.began <= ended and began <= each.ended for each in self.all)


@dataclass
class Counts:
    """What clients saw. Errors by their words; one is explained by an outage that was made."""

    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: Counter[str] = field(default_factory=Counter)


def slope(sizes: Sequence[Size]) -> float:
    """MiB a minute of ``growth``."""
    first, last = _ends(sizes)
    if not first or not last:
        return 0.0
    minutes = (_mean(last) - _mean(first)) / 60
    return growth(sizes) / minutes if minutes else 0.0


def growth(sizes: Sequence[Size]) -> float:
    """MiB between the first and the last quarter of what comes after the warm-up: by the most of
    each or by the least, whichever grew less.

    What is freed stays with a process until a reload gives it back. So the most grows for long, as
    larger requests happen to come at once; but the least does not, unless something is kept.
    """
    first, last = _ends(sizes)
    if not first or not last:
        return 0.0
    grown = (
        choose(each.resident for each in last) - choose(each.resident for each in first)
        for choose in (max, min)
    )
    return min(grown) / MIB


def _ends(sizes: Sequence[Size]) -> tuple[Sequence[Size], Sequence[Size]]:
    warm = [each for each in sizes if each.at >= sizes[-1].at * WARM]
    quarter = max(1, len(warm) // 4)
    return warm[:quarter], warm[-quarter:]


def _mean(sizes: Sequence[Size]) -> float:
    return sum(each.at for each in sizes) / len(sizes)


def steady(states: Sequence[State]) -> bool:
    """Whether descriptors and tasks only come and go."""
    counts = [(each.open_descriptors, each.tasks) for each in states]
    return all(max(each) - min(each) <= SLACK for each in zip(*counts, strict=True))


def largest(states: Sequence[State]) -> State:
    """The last of them, with the most descriptors and tasks of any."""
    return replace(
        states[-1],
        open_descriptors=max(each.open_descriptors for each in states),
        tasks=max(each.tasks for each in states),
    )


def troubles(  # noqa: PLR0913 - what was seen, from its beginning to its end
    name: str,
    before: State,
    sizes: Sequence[Size],
    after: State,
    complaints: str,
    *,
    workers: int = 1,
) -> list[str]:
    """What is wrong with the gateway ``name`` of so many ``workers``: ``before`` the traffic, with
    these ``sizes`` under it, and ``after`` everybody has gone."""
    found = []
    steepness = slope(sizes)
    if steepness > MAX_SLOPE * workers and growth(sizes) > MIN_GROWTH * workers:
        found.append(f"{name}: memory grows by {steepness:.1f} MiB a minute")
    if after.open_descriptors > before.open_descriptors + SLACK:
        found.append(
            f"{name}: {before.open_descriptors} descriptors became {after.open_descriptors}"
        )
    if after.tasks > before.tasks + SLACK:
        found.append(f"{name}: {before.tasks} tasks became {after.tasks}")
    if after.requests or after.streams:
        left = f"{after.requests} requests and {after.streams} streams"
        found.append(f"{name}: {left} are counted, though all clients are gone")
    if after.generations > 1:
        found.append(f"{name}: {after.generations} configurations serve, though one was the last")
    if complaints:
        found.append(f"{name} complains:\n{complaints}")
    return found


def errors(counts: Counts) -> list[str]:
    """What clients met that no fault explains, and kinds of traffic that never went well."""
    found = [f"{count} times {words}" for words, count in counts.unexplained.most_common()]
    if not counts.good:
        found.append("nothing was answered")
    return found


def figure(metrics: str, name: str, label: str = "") -> float:
    """The sum of what ``metrics``, as a scrape reads them, tell under ``name``, by the samples that
    have ``label``."""
    found = 0.0
    for line in metrics.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and label in sample:
            found += float(value)
    return found


def course(sizes: Sequence[Size]) -> str:
    """The memory at ten moments of the run, in MiB."""
    tenth = max(1, len(sizes) // 10)
    return " ".join(f"{each.resident / MIB:.0f}" for each in sizes[::tenth])


def features(metrics: str) -> str:
    """What the gateway had to do besides asking and answering, in one line."""
    counts = {
        "tried again": figure(metrics, "infergate_retries_total"),
        "hedged": figure(metrics, "infergate_hedges_total"),
        "fell back": figure(metrics, "infergate_fallbacks_total"),
        "mirrored": figure(metrics, "infergate_mirrored_requests_total"),
        "ejections": figure(metrics, "infergate_endpoint_ejections_total"),
        "not let in": figure(metrics, "infergate_access_refused_total"),
        "connections refused": figure(metrics, "infergate_refused_connections_total"),
        "reloads": figure(metrics, "infergate_config_reloads_total", 'result="ok"'),
        "reloads refused": figure(metrics, "infergate_config_reloads_total", 'result="failed"'),
    }
    return "; ".join(f"{name} {count:.0f}" for name, count in counts.items())


def table(name: str, before: State, sizes: Sequence[Size], after: State) -> str:
    """The figures of a process in one line."""
    peak = max((each.resident for each in (*sizes, after)), default=0)
    return (
        f"{name}: RSS {before.resident / MIB:.0f} → {after.resident / MIB:.0f} MiB "
        f"(at most {peak / MIB:.0f}; {course(sizes)}), slope {slope(sizes):+.2f} MiB/min; "
        f"descriptors {before.open_descriptors} → {after.open_descriptors}; "
        f"tasks {before.tasks} → {after.tasks}"
    )
