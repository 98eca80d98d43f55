"""The verdict of a soak, derived from samples, counters and times. This module has no I/O."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

MIB = 1 << 20
WARM = 1 / 3
"""The fraction of a run that is warm-up. In this time, caches fill and arenas grow."""
MAX_SLOPE = 1.0
"""The accepted growth of a worker in MiB per minute. A run is too short to detect a leak of ten
bytes per request."""
MIN_GROWTH = 8.0
"""The accepted total growth of a worker in MiB. Memory is allocated in arenas, and several large
requests at the same time need more arenas than before."""
SLACK = 3
"""The accepted increase of descriptors or tasks over the run."""


@dataclass(frozen=True)
class Size:
    """The ``resident`` memory in bytes of a process and its children. ``at`` is the time in seconds
    since the start of the run."""

    at: float
    resident: int


@dataclass(frozen=True)
class State:
    """The memory and other resources of a process and its children."""

    resident: int
    open_descriptors: int
    tasks: int
    requests: int = 0
    streams: int = 0
    generations: int = 1


@dataclass
class Outage:
    """An action on a server. It lasts from ``began`` until ``ended``, when everything works again
    and the gateway has detected this. Times are in seconds on one clock."""

    name: str
    began: float
    ended: float = math.inf


@dataclass
class Outages:
    """All past outages, and the current one."""

    all: list[Outage] = field(default_factory=list)

    def explain(self, began: float, ended: float) -> bool:
        """Return whether a failure between these times overlaps an outage."""
        return any(each.began <= ended and began <= each.ended for each in self.all)


@dataclass
class Counts:
    """The clients' results. Errors are counted by their text; an outage explains some of them."""

    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: Counter[str] = field(default_factory=Counter)


def slope(sizes: Sequence[Size]) -> float:
    """Return the slope of ``growth`` in MiB per minute."""
    first, last = _ends(sizes)
    if not first or not last:
        return 0.0
    minutes = (fmean(each.at for each in last) - fmean(each.at for each in first)) / 60
    return growth(sizes) / minutes if minutes else 0.0


def growth(sizes: Sequence[Size]) -> float:
    """Return the growth in MiB from the first to the last quarter after the warm-up. Both the
    maxima and the minima of the quarters are compared, and the smaller growth is returned.

    A process keeps freed memory until a reload. The maxima therefore grow for a long time, because
    larger requests happen to coincide. The minima grow only if memory leaks.
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


def steady(states: Sequence[State]) -> bool:
    """Return whether descriptors and tasks only fluctuate."""
    counts = [(each.open_descriptors, each.tasks) for each in states]
    return all(max(each) - min(each) <= SLACK for each in zip(*counts, strict=True))


def largest(states: Sequence[State]) -> State:
    """Return the last state, with the maximum of descriptors and of tasks."""
    return replace(
        states[-1],
        open_descriptors=max(each.open_descriptors for each in states),
        tasks=max(each.tasks for each in states),
    )


def problems(  # noqa: PLR0913 - all observations of a soak
    name: str,
    before: State,
    sizes: Sequence[Size],
    after: State,
    logged_bugs: str,
    *,
    workers: int = 1,
) -> list[str]:
    """Return the problems of the gateway ``name`` with ``workers``. ``before`` and ``after`` are
    its states before the traffic and after all clients have left; ``sizes`` were sampled under the
    traffic."""
    messages = []
    steepness = slope(sizes)
    if steepness > MAX_SLOPE * workers and growth(sizes) > MIN_GROWTH * workers:
        messages.append(f"{name}: memory grows by {steepness:.1f} MiB a minute")
    if after.open_descriptors > before.open_descriptors + SLACK:
        messages.append(
            f"{name}: descriptors grew from {before.open_descriptors} to {after.open_descriptors}"
        )
    if after.tasks > before.tasks + SLACK:
        messages.append(f"{name}: tasks grew from {before.tasks} to {after.tasks}")
    if after.requests or after.streams:
        remaining = f"{after.requests} requests and {after.streams} streams"
        messages.append(f"{name}: {remaining} are still counted after all clients have left")
    if after.generations > 1:
        messages.append(f"{name}: {after.generations} configurations are active; expected one")
    if logged_bugs:
        messages.append(f"{name} logged bugs:\n{logged_bugs}")
    return messages


def errors(counts: Counts) -> list[str]:
    """Return the errors that no outage explains, and a message if no request succeeded."""
    messages = [f"{count} times {text}" for text, count in counts.unexplained.most_common()]
    if not counts.good:
        messages.append("no request succeeded")
    return messages


def metric_sum(metrics: str, name: str, label: str = "") -> float:
    """Return the sum of the samples of the metric ``name`` that contain ``label``. ``metrics`` is
    the text of a scrape."""
    total = 0.0
    for line in metrics.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and label in sample:
            total += float(value)
    return total


def course(sizes: Sequence[Size]) -> str:
    """Return samples of the memory over the whole run, in MiB."""
    tenth = max(1, len(sizes) // 10)
    return " ".join(f"{each.resident / MIB:.0f}" for each in sizes[::tenth])


def features(metrics: str) -> str:
    """Return the gateway's counters other than those of requests and responses, in one line."""
    counts = {
        "retries": metric_sum(metrics, "infergate_retries_total"),
        "hedges": metric_sum(metrics, "infergate_hedges_total"),
        "fallbacks": metric_sum(metrics, "infergate_fallbacks_total"),
        "mirrored": metric_sum(metrics, "infergate_mirrored_requests_total"),
        "ejections": metric_sum(metrics, "infergate_endpoint_ejections_total"),
        "access rejections": metric_sum(metrics, "infergate_access_refused_total"),
        "connections refused": metric_sum(metrics, "infergate_refused_connections_total"),
        "reloads": metric_sum(metrics, "infergate_config_reloads_total", 'result="ok"'),
        "reloads refused": metric_sum(metrics, "infergate_config_reloads_total", 'result="failed"'),
    }
    return "; ".join(f"{name} {count:.0f}" for name, count in counts.items())


def table(name: str, before: State, sizes: Sequence[Size], after: State) -> str:
    """Return the measurements of the gateway ``name`` in one line."""
    peak = max((each.resident for each in (*sizes, after)), default=0)
    return (
        f"{name}: RSS {before.resident / MIB:.0f} → {after.resident / MIB:.0f} MiB "
        f"(at most {peak / MIB:.0f}; {course(sizes)}), slope {slope(sizes):+.2f} MiB/min; "
        f"descriptors {before.open_descriptors} → {after.open_descriptors}; "
        f"tasks {before.tasks} → {after.tasks}"
    )
