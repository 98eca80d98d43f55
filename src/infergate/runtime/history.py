"""The history of configurations: the active one and the result of the last reload, exported as
metrics and by the admin listener."""

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
    """The result of a reload. A non-empty ``error`` says why the configuration was rejected."""

    why: str
    """The cause, for example a signal."""
    when: float
    """Wall-clock time, in seconds since 1970."""
    wrong: str = ""

    def page(self) -> dict[str, Any]:
        """Return the result for JSON."""
        fields = {"when": iso(self.when), "why": self.why, "ok": not self.wrong}
        return fields | ({"error": self.wrong} if self.wrong else {})


class History:
    """``source`` is the configuration file, or None. ``reload`` triggers a reload for a reason and
    returns its result; None: reloads are unavailable."""

    def __init__(self, source: Path | None = None, sha256: str = "") -> None:
        self._source = source
        self._sha256 = sha256
        self._number = 1
        self._since = time.time()
        self._last: Outcome | None = None
        self._metrics: Metrics | None = None
        self.again: Callable[[str], Awaitable[Outcome]] | None = None
        self.read: Callable[[], Config] | None = None
        """Reads the file's current content. Raises ConfigError. None: there is no file."""
        self.changed: Callable[[], bool] = lambda: True
        """Returns whether files have changed since the last reload, successful or not."""

    def tell(self, metrics: Metrics) -> None:
        """Export the history to ``metrics`` from now on."""
        self._metrics = metrics
        metrics.reload_worked.set(1)
        self._tell_which(metrics)

    def _tell_which(self, metrics: Metrics) -> None:
        metrics.loaded.set(self._since)
        metrics.config.info({"sha256": self._sha256, "number": str(self._number)})

    def is_of_file(self) -> bool:
        """Return whether the active configuration is certainly the file's content. The file is not
        read, only its state is checked."""
        return not (self._last is not None and self._last.wrong) and not self.changed()

    def note(self, outcome: Outcome, sha256: str = "") -> None:
        """Record a finished reload; ``sha256`` is that of the active configuration if it
        succeeded."""
        self._last = outcome
        if not outcome.wrong:
            self._sha256, self._number, self._since = sha256, self._number + 1, outcome.when
        metrics = self._metrics
        if metrics is not None:
            metrics.reloads.labels("failed" if outcome.wrong else "ok").inc()
            metrics.reload_worked.set(not outcome.wrong)
            self._tell_which(metrics)

    def page(self) -> dict[str, Any]:
        """Return the history for JSON."""
        return {
            "source": None if self._source is None else str(self._source),
            "sha256": self._sha256,
            "number": self._number,
            "since": iso(self._since),
            "last_reload": None if self._last is None else self._last.page(),
        }
