"""Dictionaries of bounded size, for results that depend on data from clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dictionary of at most ``max_entries`` entries. Adding an entry to a full cache first
    empties the cache.

    Lookups are as fast as in a ``dict``; eviction by age would make them slower. Entries must be
    added by item assignment. A pickled copy is empty."""

    __slots__ = ("_max_entries",)

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._max_entries and key not in self:
            self.clear()
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[Callable[[int], BoundedCache[K, V]], tuple[int]]:
        return BoundedCache, (self._max_entries,)


class WeightedCache(BoundedCache[K, V]):
    """A bounded cache of weighted entries, with a total weight of at most ``max_weight``."""

    __slots__ = ("_max_weight", "_weight")

    def __init__(self, max_entries: int, max_weight: int) -> None:
        super().__init__(max_entries)
        self._max_weight = max_weight
        self._weight = 0

    def add(self, key: K, value: V, weight: int) -> None:
        """Add an entry with a new key. An entry heavier than the cache's limit is not added."""
        if weight > self._max_weight:
            return
        if len(self) >= self._max_entries or self._weight + weight > self._max_weight:
            self.clear()
        self._weight += weight
        self[key] = value

    def clear(self) -> None:
        super().clear()
        self._weight = 0


class GenerationalCache(WeightedCache[K, V]):
    """A weighted cache of two generations, each with half of the cache's limits. When the newer
    generation is full, it replaces the older generation. An entry in use survives, because
    ``revive`` moves it to the newer generation. ``get`` searches only the newer generation. The
    weight of a replaced entry counts until its generation is replaced."""

    __slots__ = ("_older", "_weights")

    def __init__(self, max_entries: int, max_weight: int) -> None:
        super().__init__(max_entries // 2, max_weight // 2)
        self._older: dict[K, tuple[V, int]] = {}
        self._weights: dict[K, int] = {}

    def add(self, key: K, value: V, weight: int) -> None:
        """Add or replace an entry. An entry heavier than a generation's limit is not added."""
        if weight > self._max_weight:
            return
        if len(self) >= self._max_entries or self._weight + weight > self._max_weight:
            older = {old: (self[old], self._weights[old]) for old in self}
            self.clear()
            self._older = older
        self._weights[key] = weight
        super().add(key, value, weight)

    def revive(self, key: K) -> V | None:
        """Move an entry from the older to the newer generation. Return its value, or None."""
        entry = self._older.pop(key, None)
        if entry is None:
            return None
        self.add(key, *entry)
        return entry[0]

    def clear(self) -> None:
        super().clear()
        self._older, self._weights = {}, {}
