"""Reloads the configuration. Only one reload runs at a time. Requests that arrive during a reload
share the next reload, which reads the files again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.core.log_events import BUG, CONFIG_LOADED, CONFIG_REFUSED
from infergate.plugin_host.threads import to_daemon_thread
from infergate.runtime.config_history import ConfigHistory, ReloadResult
from infergate.runtime.running import ConfigRejectedError

_log = logging.getLogger("infergate")
_MAX_ROUTES_COMPARED: Final = 500
"""Maximum number of routes of configurations that are compared. A reload waits for the
comparison."""
ReadConfig = Callable[[TrackedFiles], Config]
"""Reads the configuration through ``TrackedFiles``. Raises ConfigError."""
ApplyConfig = Callable[[Config], Awaitable[None]]
"""Applies a configuration. Raises ConfigRejectedError if the previous configuration stays
active."""


class ConfigReloader:
    """Reloads the configuration. ``files`` are the files of the last attempt, whether or not it
    succeeded."""

    def __init__(
        self,
        read: ReadConfig,
        apply: ApplyConfig,
        history: ConfigHistory,
        files: TrackedFiles,
        active: Config | None = None,
    ) -> None:
        """``active`` is the active configuration, with which the first reload is compared."""
        self._read: Final = read
        self._apply: Final = apply
        self._history: Final = history
        self.files = files
        self._lock: Final = asyncio.Lock()
        self._active = active
        self._read_config: Config | None = None
        """The configuration that the reload in progress has read."""
        self._pending: asyncio.Task[ReloadResult] | None = None
        """The reload that has not started yet."""
        history.reload = self.reload
        history.have_files_changed = lambda: self.files.have_changed()  # noqa: PLW0108

    async def reload(self, trigger: str) -> ReloadResult:
        """Reload for the reason ``trigger``, log the result and return it. Nothing is raised. The
        reload continues if the caller is cancelled."""
        if self._pending is None:
            self._pending = asyncio.create_task(self._reload(trigger))
        return await asyncio.shield(self._pending)

    async def _reload(self, trigger: str) -> ReloadResult:
        async with self._lock:
            self._pending = None
            files = TrackedFiles()
            previous, self._read_config = self._active, None
            problem = await self._read_and_apply(files)
            self.files = files
            result = ReloadResult(trigger, time.time(), problem)
            diff = await asyncio.to_thread(_diff, previous, self._read_config)
            if not problem:
                self._active = self._read_config
            self._history.record(result, files.sha256, diff)
        if problem:
            _log.error(
                "%s: configuration rejected; the previous one stays active: %s",
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

    async def _read_and_apply(self, files: TrackedFiles) -> str:
        """Read and apply the configuration. Return the problem, or an empty string."""
        try:
            # A thread reads the file, because reading a long file or importing plug-ins blocks
            # the event loop.
            config = self._read_config = await to_daemon_thread(self._read, files)
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
        """Reload for the reason ``trigger`` if files have changed since the last attempt."""
        if await asyncio.to_thread(self.files.have_changed):
            await self.reload(trigger)


def _diff(previous: Config | None, config: Config | None) -> str:
    """Return the difference between two configurations, or an empty string without them."""
    if previous is None or config is None:
        return ""
    if max(len(previous.routes), len(config.routes)) > _MAX_ROUTES_COMPARED:
        return f"Not compared: the configuration has more than {_MAX_ROUTES_COMPARED} routes."
    from infergate.config import redacted  # noqa: PLC0415 - only when a file has changed

    return redacted.redacted_diff(previous, config, ("before", "after"))
