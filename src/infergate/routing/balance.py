"""Which of the endpoints that may be asked is asked: pure decisions.

*Strategy.* Least-request looks at two that are drawn at random and takes the one with fewer
requests under way: nearly as good as looking at all, and gateways that do not know of each other
do not all run to the same one (Mitzenmacher, "The power of two choices in randomized load
balancing", 2001; Envoy's and linkerd's default).
*Rule.* Where weights differ, each is drawn with the chance that its weight is of all, and requests
under way count for its weight.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

from infergate.routing.affinity import Named, keeper

Random = Callable[[], float]
"""A number from 0 up to, but not, 1."""


class Loaded(Named, Protocol):
    """What is chosen from."""

    @property
    def active(self) -> int:
        """Requests under way."""
        ...


M = TypeVar("M", bound=Loaded)


class Table(Generic[M]):
    """What may be asked, at least one, each with a share above 0; None: all alike."""

    __slots__ = ("bounds", "members", "shares")

    def __init__(self, members: Sequence[M], shares: Sequence[float] | None = None) -> None:
        self.members: Final = members
        self.shares: Final = shares
        self.bounds: Final = None if shares is None else tuple(accumulate(shares))


class Policy(Protocol[M]):
    """A way to choose."""

    def pick(self, table: Table[M], key: str) -> M:
        """One of ``table``. ``key`` is what requests that belong together have in common; empty:
        nothing."""
        ...


class LeastRequest(Generic[M]):
    """Of two the one with fewer requests under way."""

    def __init__(self, random: Random) -> None:
        self._random: Final = random

    def pick(self, table: Table[M], key: str = "") -> M:  # noqa: ARG002 - see Policy
        """See Policy."""
        members = table.members
        count = len(members)
        if count == 1:
            return members[0]
        random = self._random
        if table.bounds is not None:
            return self._weighted(table)
        one = int(random() * count)
        other = int(random() * (count - 1))
        if other >= one:
            other += 1
        first, second = members[one], members[other]
        return second if second.active < first.active else first

    def _weighted(self, table: Table[M]) -> M:
        members, shares, bounds = table.members, table.shares, table.bounds
        assert shares is not None
        assert bounds is not None
        last = len(bounds) - 1
        one = min(bisect(bounds, self._random() * bounds[-1]), last)
        other = min(bisect(bounds, self._random() * bounds[-1]), last)
        first, second = members[one], members[other]
        return second if second.active * shares[one] < first.active * shares[other] else first


class RoundRobin(Generic[M]):
    """Each in turn, as often as its share says: earliest deadline first, as Envoy does it."""

    def __init__(self, random: Random) -> None:
        """``random`` says where the first turn begins: else all gateways would begin alike."""
        self._random: Final = random
        self._table: Table[M] | None = None
        self._due: list[tuple[float, int]] = []

    def pick(self, table: Table[M], key: str = "") -> M:  # noqa: ARG002 - see Policy
        """See Policy."""
        shares = table.shares
        if table is not self._table:
            self._table = table
            count = len(table.members)
            first = int(self._random() * count)
            every = shares or (1.0,) * count
            self._due = [(((i - first) % count + 1) / count / every[i], i) for i in range(count)]
            heapify(self._due)
        due, index = self._due[0]
        heapreplace(self._due, (due + (1.0 if shares is None else 1.0 / shares[index]), index))
        return table.members[index]


class ConsistentHash(Generic[M]):
    """Requests of one key go to one endpoint, while it may be asked; those of none as
    ``otherwise`` has it. Shares that only grow for now are not looked at: keys would move twice."""

    def __init__(self, otherwise: Policy[M]) -> None:
        self._otherwise: Final = otherwise

    def pick(self, table: Table[M], key: str) -> M:
        """See Policy."""
        return keeper(key, table.members) if key else self._otherwise.pick(table, key)
