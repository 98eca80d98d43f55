"""How many files and sockets the process may have open.

Clients' connections are kept below what the system allows: what is left is for backends, files and
the admin listener. A process whose descriptors are used up can neither answer nor tell so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from pathlib import Path
from typing import Any, Final

from infergate.core.vocabulary import FEW_DESCRIPTORS

log = logging.getLogger(__name__)

_NONE_LEFT: Final = "socket.accept() out of system resource"
"""How asyncio begins to tell of it: a thousand times a second, until there is one again. (uvloop
closes who comes meanwhile.)"""
_TLS_BROKE: Final = "Fatal error on SSL protocol"
_IS_CLOSED: Final = "the handler is closed"
"""How uvloop (0.23) tells of a connection that was given up when its socket was connected and the
server's half of the handshake had just come: it closes the socket, and then writes to it once."""
_EVERY: Final = 10.0
_SHARE: Final = 3, 4
"""Of all descriptors, how many clients may have."""


def allow_most() -> None:
    """Raise the limit as far as the system lets the process, as Go's programs do: the low one is
    for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_clients(wanted: int) -> int:
    """``wanted`` connections, or as many as the limit of now has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    part, whole = _SHARE
    return min(wanted, max(1, soft * part // whole))


def in_use() -> int:
    """Descriptors that are open now; where none is left to look with, as many as may be."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # of which one is for looking
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Complaints:
    """Handles what an event loop tells of errors that nobody awaits: of descriptors that are used
    up once in a while, and in one line; nothing of what is no error."""

    def __init__(self) -> None:
        self._told: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See ``loop.set_exception_handler``."""
        if _was_given_up(context):
            return
        if context.get("message") != _NONE_LEFT:
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if self._told is None or now >= self._told + _EVERY:
            self._told = now
            log.warning(
                "no more files can be opened: clients wait to be let in", extra=FEW_DESCRIPTORS
            )


def _was_given_up(context: dict[str, Any]) -> bool:
    """Whether it is of a connection that nobody wants any more."""
    error = context.get("exception")
    return (
        context.get("message") == _TLS_BROKE
        and isinstance(error, RuntimeError)
        and str(error).endswith(_IS_CLOSED)
    )
