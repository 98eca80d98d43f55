"""Watches files for changes.

The directories of the files are watched, and also the directories that symlinks lead to. Editors
replace a file by renaming, and Kubernetes switches a symlink beside a ConfigMap's files
(``..data``) to another directory. An event only triggers a check of the files. A check also runs
every few seconds, because some file systems have no events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from infergate.core.log_events import UNWATCHED

_log = logging.getLogger("infergate")

_POLL_SECONDS: Final = 5.0
"""Seconds between two checks of the files without an event."""
_MAX_QUIET_PERIODS: Final = 10
"""Maximum number of quiet periods for which continuous changes can delay a check."""


async def watch_files(
    paths: Callable[[], Iterable[Path]],
    quiet_seconds: Callable[[], float | None],
    on_change: Callable[[], Awaitable[None]],
) -> None:
    """Call ``on_change`` when files in the directories of ``paths`` have changed and the quiet
    period has passed, and also every ``_POLL_SECONDS``. While ``quiet_seconds`` returns None, do
    nothing. The coroutine runs until it is cancelled."""
    while True:
        seconds = quiet_seconds()
        folders = await asyncio.to_thread(_directories, paths())
        if seconds is None or not folders:
            await asyncio.sleep(_POLL_SECONDS)
            if seconds is not None:
                await on_change()
            continue
        try:
            async with aclosing(_change_events(folders, seconds)) as changes:
                async for _ in changes:
                    await on_change()
                    if (
                        quiet_seconds() != seconds
                        or await asyncio.to_thread(_directories, paths()) != folders
                    ):
                        break
        except (OSError, RuntimeError) as error:  # for example, the inotify limit is reached
            _log.warning(
                "files cannot be watched and are checked every %g s instead: %s",
                _POLL_SECONDS,
                error,
                extra=UNWATCHED,
            )
            await asyncio.sleep(_POLL_SECONDS)
            await on_change()


async def _change_events(
    folders: Iterable[Path], quiet_seconds: float
) -> AsyncGenerator[object, None]:
    """Yield after each batch of changes, and at least every ``_POLL_SECONDS``."""
    from watchfiles import awatch  # noqa: PLC0415 - only if files are watched, to save memory

    milliseconds = max(1, round(quiet_seconds * 1000))
    async for changes in awatch(
        *folders,
        watch_filter=None,
        step=milliseconds,
        debounce=_MAX_QUIET_PERIODS * milliseconds,
        rust_timeout=round(_POLL_SECONDS * 1000),
        yield_on_timeout=True,
        recursive=False,
    ):
        yield changes


def _directories(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the directories of ``paths`` and of symlink targets, each with device and inode."""
    identities: dict[Path, tuple[int, int]] = {}
    for path in paths:
        for folder in _directories_of(path):
            try:
                status = folder.stat()
            except OSError:
                continue
            identities[folder] = (status.st_dev, status.st_ino)
    return identities


def _directories_of(path: Path) -> Iterable[Path]:
    """Yield the directories of ``path`` and of every symlink target."""
    for _ in range(40):  # the number of symlinks that Linux follows
        yield path.parent
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    yield path.resolve().parent
