"""Reloads the configuration. Only one reload runs at a time. Reload requests that arrive during a
reload share the next reload, which reads the files again.

A plug-in's constructor may take minutes, or hang. After a reload has waited for a plug-in for
``SLOW_SECONDS``, the next reload replaces the waiting reload if the files have changed, and fails
immediately if the files have not changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.core.daemon_threads import to_daemon_thread
from infergate.core.log_events import BUG, CONFIG_LOADED, CONFIG_REFUSED
from infergate.plugin_host.loading import SLOW_SECONDS
from infergate.runtime.config_history import ConfigHistory, ReloadResult
from infergate.runtime.running import ConfigRejectedError

_log = logging.getLogger("infergate")
_MAX_ROUTES_COMPARED: Final = 500
"""Configurations with more routes are not compared, because a reload waits for the comparison."""
ReadConfig = Callable[[TrackedFiles], Config]
"""Reads the configuration through ``TrackedFiles``. Raises ConfigError."""
ApplyConfig = Callable[[Config], Awaitable[None]]
"""Applies a configuration. Raises ConfigRejectedError if the previous configuration stays
active."""


@dataclass(slots=True)
class _Attempt:
    """An attempt to read and apply ``files``. ``began`` is on the clock of ``time.monotonic``."""

    files: TrackedFiles
    began: float
    is_reading: bool = True
    is_abandoned: bool = False


@dataclass(slots=True, eq=False)
class ConfigReloader:
    """Reloads the configuration. ``files`` are the files of the last attempt, whether or not it
    succeeded. While ``is_creating_plugins`` returns True, ``_apply`` may be cancelled."""

    _read: ReadConfig
    _apply: ApplyConfig
    _history: ConfigHistory
    files: TrackedFiles
    _active: Config | None = None
    """The active configuration, or None if it is unknown."""
    _: KW_ONLY
    is_creating_plugins: Callable[[], bool] = lambda: False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _read_config: Config | None = None
    """The configuration that the reload in progress has read."""
    _attempt: _Attempt | None = None
    _attempt_task: asyncio.Task[str] | None = None
    _pending: asyncio.Task[ReloadResult] | None = None
    """The reload that has not started yet."""
    _tasks: set[asyncio.Task[ReloadResult]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._history.reload = self.reload
        self._history.have_files_changed = lambda: self.files.have_changed()  # noqa: PLW0108

    def request(self, trigger: str) -> asyncio.Task[ReloadResult]:
        """Return the task of the pending reload. If no reload is pending, begin one for the reason
        ``trigger``. The task never raises."""
        if self._pending is None:
            self._pending = asyncio.create_task(self._reload(trigger))
            self._tasks.add(self._pending)
            self._pending.add_done_callback(self._forget)
        return self._pending

    def _forget(self, task: asyncio.Task[ReloadResult]) -> None:
        self._tasks.discard(task)
        if self._pending is task:  # the reload failed before it began
            self._pending = None

    async def reload(self, trigger: str) -> ReloadResult:
        """Reload for the reason ``trigger``, log the result and return it. Never raises. The reload
        continues if the caller is cancelled."""
        return await asyncio.shield(self.request(trigger))

    async def _reload(self, trigger: str) -> ReloadResult:
        files, diff = TrackedFiles(), ""
        if problem := await self._end_slow_attempt():
            self._pending = None
        else:
            async with self._lock:
                self._pending = None
                previous, self._read_config = self._active, None
                problem = await self._attempt_to_apply(files)
                self.files = files
                diff = await asyncio.to_thread(_diff, previous, self._read_config)
                if not problem:
                    self._active = self._read_config
        result = ReloadResult(trigger, time.time(), problem)
        self._history.record(result, files.sha256, diff)
        if problem:
            _log.error(
                "%s: configuration rejected; the previous configuration stays active: %s",
                trigger,
                problem,
                extra=CONFIG_REFUSED,
            )
        else:
            _log.info(
                "%s: new configuration active; SHA-256 %s",
                trigger,
                files.sha256,
                extra=CONFIG_LOADED,
            )
        return result

    async def _end_slow_attempt(self) -> str:
        """Wait until the attempt in progress has ended or is slow. If it is slow because of a
        plug-in, abandon it, or return the problem if its files are unchanged."""
        attempt, task = self._attempt, self._attempt_task
        if attempt is None or task is None:
            return ""

        def waits_for_plugins() -> bool:
            return not task.done() and (attempt.is_reading or self.is_creating_plugins())

        await asyncio.wait({task}, timeout=attempt.began + SLOW_SECONDS - time.monotonic())
        if not waits_for_plugins():
            return ""
        have_changed = await asyncio.to_thread(attempt.files.have_changed)
        if not waits_for_plugins():  # the plug-ins were created in the meantime
            return ""
        if have_changed:
            attempt.is_abandoned = True
            task.cancel()
            return ""
        seconds = time.monotonic() - attempt.began
        return (
            f"an earlier reload has waited {seconds:.0f} s for a plug-in (log event plugin_slow); "
            "it is abandoned only if the configuration has changed since"
        )

    async def _attempt_to_apply(self, files: TrackedFiles) -> str:
        """Return the problem, or an empty string."""
        attempt = self._attempt = _Attempt(files, time.monotonic())
        self._attempt_task = asyncio.create_task(self._read_and_apply(attempt))
        try:
            return await self._attempt_task
        except asyncio.CancelledError:
            if not attempt.is_abandoned:
                raise
            return "abandoned for a later reload, because a plug-in took too long"
        finally:
            self._attempt = self._attempt_task = None

    async def _read_and_apply(self, attempt: _Attempt) -> str:
        """Read and apply the configuration. Return the problem, or an empty string."""
        try:
            # A thread reads the file, because reading a long file or importing plug-ins would block
            # the event loop.
            config = self._read_config = await to_daemon_thread(self._read, attempt.files)
            attempt.is_reading = False
            await self._apply(config)
        except ConfigError as error:
            return "; ".join(map(str, error.mistakes))
        except ConfigRejectedError as error:
            return str(error)
        except Exception:  # noqa: BLE001 - a bug must not end the gateway
            _log.exception("bug while applying a configuration", extra=BUG)
            return "internal error, see the log"
        return ""

    async def reload_if_changed(self, trigger: str) -> None:
        """Reload for the reason ``trigger`` if files have changed since the last attempt. Wait at
        most ``SLOW_SECONDS``, so that further changes are noticed."""
        files = self.files if self._attempt is None else self._attempt.files
        if await asyncio.to_thread(files.have_changed):
            await asyncio.wait({self.request(trigger)}, timeout=SLOW_SECONDS)


def _diff(previous: Config | None, config: Config | None) -> str:
    """Return the difference between two configurations, or an empty string if one is None."""
    if previous is None or config is None:
        return ""
    if max(len(previous.routes), len(config.routes)) > _MAX_ROUTES_COMPARED:
        return f"Not compared: the configuration has more than {_MAX_ROUTES_COMPARED} routes."
    from infergate.config import redacted  # noqa: PLC0415 - only when a file has changed

    return redacted.redacted_diff(previous, config, ("before", "after"))
