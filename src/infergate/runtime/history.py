"""What is told of configurations: which one serves, and what became of the last try to take
another. Told by metrics and by the admin listener."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infergate.config.schema import Config
from infergate.observe.access_log import iso
from infergate.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a reload: ``wrong`` says why nothing has changed; empty: it worked."""

    why: str
    """What made it happen."""
    when: float
    """The wall clock."""
    wrong: str = ""

    def page(self) -> dict[str, Any]:
        """As JSON tells it."""
        told = {"when": iso(self.when), "why": self.why, "ok": not self.wrong}
        return told | ({"error": self.wrong} if self.wrong else {})


class History:
    """``source`` is the file; None: there is none. ``again`` is what reloads, for the reason that
    it is given; None: nothing does."""

    def __init__(self, source: Path | None = None, sha256: str = "") -> None:
        self._source = source
        self._sha256 = sha256
        self._number = 1
        self._since = time.time()
        self._last: Outcome | None = None
        self._metrics: Metrics | None = None
        self.again: Callable[[str], Awaitable[Outcome]] | None = None
        self.read: Callable[[], Config] | None = None
        """Reads what the file says now. Raises ConfigError. None: there is no file."""
        self.changed: Callable[[], bool] = lambda: True
        """Whether files are others than at the last reload, good or bad."""

    def tell(self, metrics: Metrics) -> None:
        """From now on ``metrics`` tell it too."""
        self._metrics = metrics
        metrics.reload_worked.set(1)
        self._tell_which(metrics)

    def _tell_which(self, metrics: Metrics) -> None:
        metrics.loaded.set(self._since)
        metrics.config.info({"sha256": self._sha256, "number": str(self._number)})

    def is_of_file(self) -> bool:
        """Whether it is certain that the file says what serves: it is looked at, and not read."""
        return not (self._last is not None and self._last.wrong) and not self.changed()

    def note(self, outcome: Outcome, sha256: str = "") -> None:
        """A reload has ended; where it worked, what serves now has ``sha256``."""
        self._last = outcome
        if not outcome.wrong:
            self._sha256, self._number, self._since = sha256, self._number + 1, outcome.when
        metrics = self._metrics
        if metrics is not None:
            metrics.reloads.labels("failed" if outcome.wrong else "ok").inc()
            metrics.reload_worked.set(not outcome.wrong)
            self._tell_which(metrics)

    def page(self) -> dict[str, Any]:
        """As JSON tells it."""
        return {
            "source": None if self._source is None else str(self._source),
            "sha256": self._sha256,
            "number": self._number,
            "since": iso(self._since),
            "last_reload": None if self._last is None else self._last.page(),
        }
