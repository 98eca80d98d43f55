"""Reloads the configuration: reads it again and applies it.

*Rule.* Reloads run one at a time. Requests that arrive during a reload share the next one, which
reads the files' content at that time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from infergate.config.files import Files
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.vocabulary import BUG, CONFIG_REFUSED, CONFIG_TAKEN
from infergate.runtime.history import History, Outcome
from infergate.runtime.running import NotTaken

_log = logging.getLogger("infergate")
Read = Callable[[Files], Config]
"""Reads the configuration through ``Files``. Raises ConfigError."""
Take = Callable[[Config], Awaitable[None]]
"""Applies a configuration. Raises ConfigRejectedError if the previous one stays active."""


class Reloads:
    """``files`` are those of the last attempt, successful or not."""

    def __init__(self, read: Read, take: Take, history: History, files: Files) -> None:
        self._read: Final = read
        self._take: Final = take
        self._history: Final = history
        self.files = files
        self._one: Final = asyncio.Lock()
        self._next: asyncio.Task[Outcome] | None = None
        """The reload that has not started yet."""
        history.again = self.again
        history.changed = self._have_changed

    def _have_changed(self) -> bool:
        return self.files.have_changed()

    async def again(self, why: str) -> Outcome:
        """Reload for the reason ``trigger``, log the result and return it. Raises nothing.
        Cancelling the caller does not cancel the reload."""
        if self._next is None:
            self._next = asyncio.create_task(self._again(why))
        return await asyncio.shield(self._next)

    async def _again(self, why: str) -> Outcome:
        async with self._one:
            self._next = None
            files = Files()
            problem = await self._try(files)
            self.files = files
            result = Outcome(why, time.time(), problem)
            self._history.note(result, files.sha256)
        if problem:
            _log.error(
                "%s: configuration rejected, the previous one stays active: %s",
                why,
                problem,
                extra=CONFIG_REFUSED,
            )
        else:
            _log.info(
                "%s: new configuration active, sha256 %s", why, files.sha256, extra=CONFIG_TAKEN
            )
        return result

    async def _try(self, files: Files) -> str:
        """Read and apply the configuration; return what was wrong, or an empty string."""
        try:
            # In a thread, because a long file would block the event loop.
            config = await asyncio.to_thread(self._read, files)
            await self._take(config)
        except ConfigError as error:
            return "; ".join(map(str, error.mistakes))
        except NotTaken as error:
            return str(error)
        except Exception:  # noqa: BLE001 - a bug must not end the gateway
            _log.exception("bug while applying a configuration", extra=BUG)
            return "internal error, see the log"
        return ""

    async def if_changed(self, why: str) -> None:
        """Reload for the reason ``trigger`` if files have changed since the last attempt."""
        if await asyncio.to_thread(self.files.have_changed):
            await self.again(why)
