"""Tells when files change.

*Strategy.* The system tells of changes in the folders of the files, for a file that is replaced is
another one: editors rename, and Kubernetes turns a link beside a ConfigMap's files (``..data``) to
another folder. So folders are watched also where links lead to. What was told is a reason to look,
no more; and every few seconds there is one anyway, for file systems that tell nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from infergate.core.vocabulary import UNWATCHED

_log = logging.getLogger("infergate")

_LOOK: Final = 5.0
"""Seconds after which files are looked at though nothing was told."""
_PATIENCE: Final = 10
"""How many times the quiet time changes may go on before the files are looked at all the same."""


async def watch(
    paths: Callable[[], Iterable[Path]],
    quiet: Callable[[], float | None],
    look: Callable[[], Awaitable[None]],
) -> None:
    """``look`` whenever something near ``paths`` has changed and ``quiet`` seconds have passed
    since; not at all while that is None. Runs until it is cancelled."""
    while True:
        seconds = quiet()
        folders = await asyncio.to_thread(_folders, paths())
        if seconds is None or not folders:
            await asyncio.sleep(_LOOK)
            if seconds is not None:
                await look()
            continue
        try:
            async with aclosing(_told(folders, seconds)) as told:
                async for _ in told:
                    await look()
                    if quiet() != seconds or await asyncio.to_thread(_folders, paths()) != folders:
                        break
        except (OSError, RuntimeError) as error:  # the system has no watches left
            _log.warning(
                "files are looked at every %g s, for they cannot be watched: %s",
                _LOOK,
                error,
                extra=UNWATCHED,
            )
            await asyncio.sleep(_LOOK)
            await look()


async def _told(folders: Iterable[Path], quiet: float) -> AsyncGenerator[object, None]:
    """Something comes when something has changed, and every ``_LOOK`` seconds."""
    from watchfiles import awatch  # noqa: PLC0415 - memory of those alone that watch

    milliseconds = max(1, round(quiet * 1000))
    async for changes in awatch(
        *folders,
        watch_filter=None,
        step=milliseconds,
        debounce=_PATIENCE * milliseconds,
        rust_timeout=round(_LOOK * 1000),
        yield_on_timeout=True,
        recursive=False,
    ):
        yield changes


def _folders(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """The folders on the way to ``paths``, through all links, each with what tells it from one that
    takes its place."""
    found: dict[Path, tuple[int, int]] = {}
    for path in paths:
        for folder in _on_the_way(path):
            try:
                about = folder.stat()
            except OSError:
                continue
            found[folder] = (about.st_dev, about.st_ino)
    return found


def _on_the_way(path: Path) -> Iterable[Path]:
    """The folder of ``path``, and where it is a link, that of where it leads."""
    for _ in range(40):  # as many links as Linux follows
        yield path.parent
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    yield path.resolve().parent
