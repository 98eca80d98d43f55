"""Which endpoint is asked, and which next: a pure decision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Endpoints in turn."""

    def __init__(self, endpoints: Sequence[T], attempts: int) -> None:
        """``attempts`` bounds how many endpoints one request may be tried on."""
        count, attempts = len(endpoints), max(1, attempts)
        orders = (
            tuple(endpoints[(first + i) % count] for i in range(attempts)) for first in range(count)
        )
        self._orders: Final = itertools.cycle(tuple(orders))

    def order(self) -> tuple[T, ...]:
        """The endpoints to try for the next request, best first; never empty.

        One endpoint stands twice, so that a connection refused while a server restarts gets the
        second attempt that several endpoints would give it.
        """
        return next(self._orders)
