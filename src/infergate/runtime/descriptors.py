"""The limit on open files and sockets of the process.

Client connections are kept below the limit, so that descriptors remain for backends, files and the
admin listener: a process without free descriptors can neither respond nor report its state.
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
"""The start of asyncio's message, logged a thousand times a second until a descriptor is free.
(uvloop closes new connections instead.)"""
_TLS_BROKE: Final = "Fatal error on SSL protocol"
_IS_CLOSED: Final = "the handler is closed"
"""The end of uvloop's message (0.23) if a connection was aborted just as its socket was connected
and the server's TLS handshake arrived: it closes the socket and then writes to it once."""
_EVERY: Final = 10.0
_SHARE: Final = 3, 4
"""The fraction of all descriptors that clients may use."""


def allow_most() -> None:
    """Raise the soft limit to the hard limit, as Go programs do; the low default is for programs
    that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_clients(wanted: int) -> int:
    """Return ``wanted`` connections, or fewer if the current limit does not allow them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    part, whole = _SHARE
    return min(wanted, max(1, soft * part // whole))


def in_use() -> int:
    """Return the number of open descriptors; the limit itself if none is left to count with."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # the listing itself uses one
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Complaints:
    """The exception handler of the event loop. It logs exhausted descriptors once per interval in
    one line, and drops a harmless error of uvloop."""

    def __init__(self) -> None:
        self._told: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle ``context``, as for ``loop.set_exception_handler``."""
        if _was_given_up(context):
            return
        if context.get("message") != _NONE_LEFT:
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if self._told is None or now >= self._told + _EVERY:
            self._told = now
            log.warning(
                "out of file descriptors: new client connections wait", extra=FEW_DESCRIPTORS
            )


def _was_given_up(context: dict[str, Any]) -> bool:
    """Return whether ``context`` reports a connection that was aborted during the TLS handshake."""
    error = context.get("exception")
    return (
        context.get("message") == _TLS_BROKE
        and isinstance(error, RuntimeError)
        and str(error).endswith(_IS_CLOSED)
    )
