"""Load-balancing policies.

Least-request compares two random endpoints and picks the endpoint with fewer active requests. This
is nearly as good as a comparison of all endpoints, and independent gateways do not all choose the
same endpoint (Mitzenmacher, "The power of two choices in randomized load balancing", 2001; Envoy's
LEAST_REQUEST). If weights differ, an endpoint is drawn with a probability proportional to its
weight, and the number of its active requests is divided by the weight."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

from infergate.routing.affinity import HashCandidate, rendezvous_owner

RandomSource = Callable[[], float]
"""Returns a random number in [0, 1)."""


class LoadedCandidate(HashCandidate, Protocol):
    """A candidate with its number of active requests."""

    @property
    def active(self) -> int: ...


M = TypeVar("M", bound=LoadedCandidate)


class CandidateTable(Generic[M]):
    """One or more candidates. ``shares`` are their weights, reduced during slow start; each share
    is above 0. If ``shares`` is None, all shares are equal."""

    __slots__ = ("cumulative_shares", "members", "shares")

    def __init__(self, members: Sequence[M], shares: Sequence[float] | None = None) -> None:
        self.members: Final = members
        self.shares: Final = shares
        self.cumulative_shares: Final = None if shares is None else tuple(accumulate(shares))


class BalancingPolicy(Protocol[M]):
    """Picks a candidate for each request."""

    def pick(self, table: CandidateTable[M], key: str) -> M:
        """Return a candidate of ``table`` for a request with ``key``. The key is empty if the
        request may go to any candidate."""
        ...


class LeastRequest(Generic[M]):
    """Picks two random candidates and returns the candidate with fewer active requests."""

    def __init__(self, random: RandomSource) -> None:
        self._random: Final = random

    def pick(self, table: CandidateTable[M], key: str = "") -> M:  # noqa: ARG002 - the protocol has it
        members = table.members
        count = len(members)
        if count == 1:
            return members[0]
        random = self._random
        if table.cumulative_shares is not None:
            return self._pick_weighted(table)
        first_index = int(random() * count)
        second_index = int(random() * (count - 1))
        if second_index >= first_index:
            second_index += 1
        first, second = members[first_index], members[second_index]
        return second if second.active < first.active else first

    def _pick_weighted(self, table: CandidateTable[M]) -> M:
        members, shares, bounds = table.members, table.shares, table.cumulative_shares
        assert shares is not None
        assert bounds is not None
        last = len(bounds) - 1
        i = min(bisect(bounds, self._random() * bounds[-1]), last)
        j = min(bisect(bounds, self._random() * bounds[-1]), last)
        first, second = members[i], members[j]
        return second if second.active * shares[i] < first.active * shares[j] else first


class RoundRobin(Generic[M]):
    """Weighted round robin by earliest deadline first, as in Envoy."""

    def __init__(self, random: RandomSource) -> None:
        """``random`` chooses the first candidate of a table, so that gateways start at different
        candidates."""
        self._random: Final = random
        self._table: CandidateTable[M] | None = None
        self._deadlines: list[tuple[float, int]] = []

    def pick(self, table: CandidateTable[M], key: str = "") -> M:  # noqa: ARG002 - the protocol has it
        shares = table.shares
        if table is not self._table:
            self._table = table
            count = len(table.members)
            offset = int(self._random() * count)
            all_shares = shares or (1.0,) * count
            self._deadlines = [
                (((i - offset) % count + 1) / count / all_shares[i], i) for i in range(count)
            ]
            heapify(self._deadlines)
        deadline, index = self._deadlines[0]
        heapreplace(
            self._deadlines, (deadline + (1.0 if shares is None else 1.0 / shares[index]), index)
        )
        return table.members[index]


class ConsistentHash(Generic[M]):
    """Picks the same candidate for requests with the same key while the candidates do not change.
    ``fallback`` picks a candidate for requests without a key. Slow-start shares are ignored,
    because changing shares would move keys."""

    def __init__(self, fallback: BalancingPolicy[M]) -> None:
        self._fallback: Final = fallback

    def pick(self, table: CandidateTable[M], key: str) -> M:
        return rendezvous_owner(key, table.members) if key else self._fallback.pick(table, key)
