"""The history of configurations: the active configuration and the result of the last reload, for
metrics and the admin listener."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infergate.config.schema import Config
from infergate.observe.access_log import iso_time
from infergate.observe.metrics import Metrics
from infergate.runtime.gateway_events import GatewayEvents


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload. ``error`` is empty if the configuration was accepted."""

    trigger: str
    """The cause of the reload, for example ``SIGHUP``."""
    finished_at: float
    """Wall-clock time, in seconds since 1970."""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        fields = {"when": iso_time(self.finished_at), "why": self.trigger, "ok": not self.error}
        return fields | ({"error": self.error} if self.error else {})


class ConfigHistory:
    """The active configuration and the last reload. ``source`` is the configuration file, or None.
    ``reload`` is None if reloads are not possible. Otherwise, it is a function that reloads for a
    given reason and returns the result."""

    def __init__(self, source: Path | None = None, sha256: str = "") -> None:
        self._source = source
        self._sha256 = sha256
        self._version = 1
        self._active_since = time.time()
        self._last_reload: ReloadResult | None = None
        self._metrics: Metrics | None = None
        self.events: Final = GatewayEvents()
        self.reload: Callable[[str], Awaitable[ReloadResult]] | None = None
        self.read_config: Callable[[], Config] | None = None
        """A function that reads the configuration file and raises ConfigError if the file is
        invalid, or None without a file."""
        self.have_files_changed: Callable[[], bool] = lambda: True
        """Returns whether files have changed since the last reload, which may have failed."""

    def export_to(self, metrics: Metrics) -> None:
        """Export the history as metrics in ``metrics`` from now on."""
        self._metrics = metrics
        metrics.last_reload_succeeded.set(1)
        self._export_version(metrics)

    def _export_version(self, metrics: Metrics) -> None:
        metrics.loaded_at.set(self._active_since)
        metrics.config.info({"sha256": self._sha256, "number": str(self._version)})

    def matches_file(self) -> bool:
        """Return whether the file is known to contain the active configuration, without reading
        it."""
        has_failed = self._last_reload is not None and self._last_reload.error
        return not has_failed and not self.have_files_changed()

    def record(self, result: ReloadResult, sha256: str = "", diff: str = "") -> None:
        """Record a finished reload. ``sha256`` is the hash of the new configuration. ``diff`` is
        the difference from the previous configuration, without secrets."""
        self._last_reload = result
        if result.error:
            text = f"the configuration was rejected ({result.trigger}): {result.error}"
            self.events.add("reload_failed", text, diff=diff)
        else:
            text = f"a new configuration is active ({result.trigger})"
            self.events.add("reload", text, diff=diff)
            self._sha256, self._active_since = sha256, result.finished_at
            self._version += 1
        metrics = self._metrics
        if metrics is not None:
            metrics.reloads.labels("failed" if result.error else "ok").inc()
            metrics.last_reload_succeeded.set(not result.error)
            self._export_version(metrics)

    def as_json(self) -> dict[str, Any]:
        return {
            "source": None if self._source is None else str(self._source),
            "sha256": self._sha256,
            "number": self._version,
            "since": iso_time(self._active_since),
            "last_reload": None if self._last_reload is None else self._last_reload.as_json(),
        }
