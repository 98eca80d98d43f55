"""The time that a request waits for a connection to a backend.

A connection pool does not know which request is waiting, so it adds the time to a context variable
of the request's task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

_seconds: Final[ContextVar[float]] = ContextVar("connect_seconds", default=0.0)


def add_connect_seconds(seconds: float) -> None:
    """Add ``seconds`` to the time that the current task has waited for connections."""
    _seconds.set(_seconds.get() + seconds)


def take_connect_seconds() -> float:
    """Return the seconds that the current task has waited for connections since the last call."""
    seconds = _seconds.get()
    if seconds:
        _seconds.set(0.0)
    return seconds
