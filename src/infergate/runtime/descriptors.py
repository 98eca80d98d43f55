"""The limit on open files and sockets of the process.

Client connections stay below the limit, because a process without free descriptors can neither
respond nor report its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from pathlib import Path
from typing import Any, Final

from infergate.core.log_events import OPEN_FILES_LIMIT

log = logging.getLogger(__name__)

_ACCEPT_FAILED: Final = "socket.accept() out of system resource"
"""The message that asyncio logs a thousand times a second until a descriptor is free. uvloop closes
new connections instead."""
_TLS_FAILED: Final = "Fatal error on SSL protocol"
_HANDLER_CLOSED: Final = "the handler is closed"
"""The end of the error text that uvloop 0.23 reports if a client aborts a connection before the TLS
handshake. uvloop closes the socket and then writes to it once."""
_WARNING_INTERVAL_SECONDS: Final = 10.0
_CLIENT_SHARE: Final = 3, 4
"""The fraction of all descriptors that clients may use, as numerator and denominator."""


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as Go programs do. The soft limit is low by default
    because of select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems report an unusable limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_client_connections(configured: int) -> int:
    """Return the lower of ``configured`` and the number of client connections that the current
    limit allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    part, whole = _CLIENT_SHARE
    return min(configured, max(1, soft * part // whole))


def count_open() -> int:
    """Return the number of open descriptors, or the limit if no descriptor is free for counting."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # the listing's own descriptor
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class LoopExceptionHandler:
    """The exception handler of the event loop. If descriptors are exhausted, it logs one line per
    interval. It ignores a harmless error of uvloop. Other errors go to the default handler."""

    def __init__(self) -> None:
        self._warned_at: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle ``context``, which ``loop.set_exception_handler`` describes."""
        if _is_aborted_handshake(context):
            return
        if context.get("message") != _ACCEPT_FAILED:
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if self._warned_at is None or now >= self._warned_at + _WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            log.warning(
                "out of file descriptors: new client connections wait", extra=OPEN_FILES_LIMIT
            )


def _is_aborted_handshake(context: dict[str, Any]) -> bool:
    error = context.get("exception")
    return (
        context.get("message") == _TLS_FAILED
        and isinstance(error, RuntimeError)
        and str(error).endswith(_HANDLER_CLOSED)
    )
