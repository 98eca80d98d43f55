"""Which endpoint is asked, and which next: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Endpoints in turn."""

    def __init__(self, endpoints: Sequence[T], attempts: int) -> None:
        """``attempts`` bounds how many endpoints one request may be tried on."""
        self._endpoints: Final = tuple(endpoints)
        self._attempts: Final = max(1, attempts)
        self._turn = 0

    def order(self) -> tuple[T, ...]:
        """The endpoints to try for the next request, best first; never empty.

        One endpoint stands twice, so that a connection refused while a server restarts gets the
        second attempt that several endpoints would give it.
        """
        count = len(self._endpoints)
        turn = self._turn
        self._turn = (turn + 1) % count
        return tuple(self._endpoints[(turn + i) % count] for i in range(self._attempts))
