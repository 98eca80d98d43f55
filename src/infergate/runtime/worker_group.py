"""The resources shared by the processes of one gateway."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from infergate.access.rate_limits import LocalBuckets, RateBuckets
from infergate.caching.local_store import LocalStore
from infergate.caching.store import ResponseStore
from infergate.core.messages import ModelStatistics
from infergate.observe.exposition import Exposition
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import RecentRequests
from infergate.runtime.console.sources import ConsoleSource
from infergate.runtime.recording_actions import ControlRecording


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The processes of one gateway, as seen by one process. By default, there is only one process,
    and the optional functions are None."""

    metrics: Metrics = field(default_factory=Metrics)
    number: int = 0
    """The number of this process among the workers."""
    scrape: Callable[[str], Awaitable[Exposition]] | None = None
    """Returns the metrics of all processes in the format that an Accept header requests."""
    check_ready: Callable[[], Awaitable[bool]] | None = None
    """Returns whether the processes together are ready."""
    aggregate_statistics: Callable[[str, str], Awaitable[ModelStatistics]] | None = None
    """Returns the group's statistics of a model and version."""
    rate_buckets: Callable[[bytes], RateBuckets] = lambda _: LocalBuckets()
    """Returns the buckets for a set of rate limits. The argument identifies the set. By default,
    the buckets are local to the process."""
    response_store: Callable[[], ResponseStore] = field(
        default_factory=lambda: functools.cache(LocalStore)
    )
    """Returns the store of the response cache. The first call creates the store."""
    recent_requests: RecentRequests = field(default_factory=RecentRequests)
    console_source: ConsoleSource | None = None
    """The console's data source for all processes."""
    control_recording: ControlRecording | None = None
    """Starts or stops recording in all processes."""
    log_lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    """The lock that is held while lines of the access log are written."""


class ProcessEndedError(Exception):
    """A process of the gateway has ended with ``code``. A negative code is a negated signal
    number."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code: Final = code or 1 if code >= 0 else 128 - code
        """The exit code as a shell reports it, but 1 instead of 0."""
