"""Counters of backends, routes, plug-ins and recordings, except the counters of requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from infergate.core.duration_histogram import REQUEST_BUCKETS, DurationHistogram


@dataclass(slots=True)
class BackendCounters:
    """The counters of one backend, or of the queue of the helper processes, since the process
    started."""

    retries: Counter[str] = field(default_factory=Counter)
    """Attempts after the first, by reason: ``not_sent``, ``broken``, ``timeout`` or
    ``declined``."""
    budget_exhausted: int = 0
    """Retries and hedges that were not sent because the retry budget was exhausted."""
    hedges_won: int = 0
    """Hedges whose response was used."""
    hedges_lost: int = 0
    queued: int = 0
    """Requests waiting in the queue now."""
    queued_by_priority: Counter[int] = field(default_factory=Counter)
    queue_rejected: int = 0
    """Requests rejected or displaced because the queue was full."""
    shed_by_priority: Counter[int] = field(default_factory=Counter)
    queue_expired: int = 0
    """Requests whose deadline passed in the queue."""
    queue_wait: DurationHistogram = field(
        default_factory=lambda: DurationHistogram(REQUEST_BUCKETS)
    )
    """The waiting times of requests that have left the queue."""

    def record_hedge(self, won: bool | None) -> None:  # noqa: FBT001 - an outcome, not a mode
        """Record whether the hedge of a request won. ``won`` is None if no hedge was sent."""
        if won is not None:
            self.hedges_won += won
            self.hedges_lost += not won


@dataclass(slots=True)
class RouteCounters:
    """The counters of one route, since the process started."""

    fallbacks: int = 0
    """Inferences sent to the fallback backend."""
    mirrored: Counter[str] = field(default_factory=Counter)
    """Mirrored copies by outcome: ``ok``, ``failed``, or ``dropped`` because a limit was
    reached."""
    comparisons: Counter[str] = field(default_factory=Counter)
    """Compared copies by result: ``equal``, ``within_noise``, ``different``, ``error`` if the
    comparison failed, or ``dropped`` because a limit was reached."""
    differences: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Differences by output and cause."""
    mismatches: Counter[str] = field(default_factory=Counter)
    """Mismatches by the result of storing them: ``stored``, ``full`` or ``failed``."""
    cache: Counter[str] = field(default_factory=Counter)
    """Inferences by the result of the response cache: ``hit``, ``miss``, ``collapsed`` or
    ``bypass``."""

    def count_difference(self, output: str, cause: str) -> None:
        """Count a difference of ``output``. Beyond ``MAX_DIFFERENCES``, all further outputs share
        one counter per cause, because servers choose the names of outputs."""
        if len(self.differences) >= MAX_DIFFERENCES and (output, cause) not in self.differences:
            output = OTHER_OUTPUTS
        self.differences[output, cause] += 1


@dataclass(slots=True)
class PluginCounters:
    """The counters of one plug-in, since the process started."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls by outcome: ``ok``, ``rejected``, ``error``, ``timeout``, ``cancelled``, ``invalid`` if
    the call returned an invalid result, or ``refused`` because too many calls hang."""
    answers: int = 0
    """Inferences that a hook answered without the model."""
    seconds: DurationHistogram = field(default_factory=lambda: DurationHistogram(REQUEST_BUCKETS))
    """The durations of calls that ended in time."""
    hanging: int = 0
    """Calls that have not ended although their callers have stopped waiting."""


MAX_DIFFERENCES: Final = 256
"""Maximum number of pairs of an output and a cause that are counted separately."""
OTHER_OUTPUTS: Final = "(others)"


@dataclass(slots=True)
class RecordingCounters:
    """The counters of a process's recordings, since the process started."""

    exchanges: Counter[str] = field(default_factory=Counter)
    """Inferences selected for recording, by result: ``recorded``, or the reason why the inference
    was dropped."""
    bytes: int = 0
    """Bytes of compressed records that were written."""
    failures: int = 0
    """Number of times that a failure stopped recording."""
