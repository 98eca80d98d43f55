"""What processes that serve as one have together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from infergate.access.rates import Buckets, Counting
from infergate.core.messages import ModelStatistics
from infergate.observe.exposition import Exposition
from infergate.observe.metrics import Metrics
from infergate.observe.recent import Recent
from infergate.runtime.console.view import View


@dataclass(frozen=True, slots=True)
class Company:
    """What of it one process is given. As it stands: of one that is alone."""

    metrics: Metrics = field(default_factory=Metrics)
    """This process's own."""
    scrape: Callable[[str], Awaitable[Exposition]] | None = None
    """The metrics of all, in the form that a header Accept asks for; None: this one's are all
    there are."""
    ready: Callable[[], Awaitable[bool]] | None = None
    """Whether they can serve, all taken together; None: this one's readiness is all there is."""
    counted: Callable[[str, str], Awaitable[ModelStatistics]] | None = None
    """What all gateways have counted of a model, told as of a version; None: this one's figures."""
    buckets: Callable[[bytes], Counting] = lambda _: Buckets()
    """Where rates of access are counted that these bytes tell apart from others; by default this
    process counts by itself."""
    recent: Recent = field(default_factory=Recent)
    """This process's own."""
    view: View | None = None
    """All of them, as the console sees them; None: this one is all there is."""
    lines: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while lines of the access log are written."""


class Ended(Exception):  # noqa: N818 - of a process
    """A process that should serve has ended with the exit ``code`` (negative: by a signal)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code: Final = code or 1 if code >= 0 else 128 - code
        """As a shell tells it."""
