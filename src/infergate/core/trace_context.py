"""The trace that a request belongs to."""

from __future__ import annotations

from typing import Protocol


class TraceContext(Protocol):
    """The trace that a request belongs to."""

    @property
    def id(self) -> str:
        """The trace id, 32 hexadecimal digits; empty for a trace that is not sampled."""
        ...
