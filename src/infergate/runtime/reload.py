"""Reads the configuration again and has it served, whoever asks for that.

*Rule.* One at a time: who asks while another is under way has one after it, which reads what the
files hold then. All who ask meanwhile share that one.
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
"""Reads the configuration, by ``Files``. Raises ConfigError."""
Take = Callable[[Config], Awaitable[None]]
"""Has a configuration served. Raises NotTaken where the one before goes on."""


class Reloads:
    """``files`` are those of the last try, good or bad."""

    def __init__(self, read: Read, take: Take, history: History, files: Files) -> None:
        self._read: Final = read
        self._take: Final = take
        self._history: Final = history
        self.files = files
        self._one: Final = asyncio.Lock()
        self._next: asyncio.Task[Outcome] | None = None
        """The reload that has not begun."""
        history.again = self.again
        history.changed = self._have_changed

    def _have_changed(self) -> bool:
        return self.files.have_changed()

    async def again(self, why: str) -> Outcome:
        """Reload, because of ``why``. It is logged, and not given up where who asked is gone;
        raises nothing."""
        if self._next is None:
            self._next = asyncio.create_task(self._again(why))
        return await asyncio.shield(self._next)

    async def _again(self, why: str) -> Outcome:
        async with self._one:
            self._next = None
            files = Files()
            wrong = await self._try(files)
            self.files = files
            outcome = Outcome(why, time.time(), wrong)
            self._history.note(outcome, files.sha256)
        if wrong:
            _log.error(
                "%s: the configuration is not taken, the one before goes on: %s",
                why,
                wrong,
                extra=CONFIG_REFUSED,
            )
        else:
            _log.info(
                "%s: a new configuration serves, sha256 %s", why, files.sha256, extra=CONFIG_TAKEN
            )
        return outcome

    async def _try(self, files: Files) -> str:
        """What was wrong, empty where nothing was."""
        try:
            # By a thread: a long file would keep requests waiting.
            config = await asyncio.to_thread(self._read, files)
            await self._take(config)
        except ConfigError as error:
            return "; ".join(map(str, error.mistakes))
        except NotTaken as error:
            return str(error)
        except Exception:  # noqa: BLE001 - a bug costs one reload
            _log.exception("a bug while taking a configuration", extra=BUG)
            return "internal error, see the log"
        return ""

    async def if_changed(self, why: str) -> None:
        """Reload, because of ``why``, where files are not what they were at the last try."""
        if await asyncio.to_thread(self.files.have_changed):
            await self.again(why)
