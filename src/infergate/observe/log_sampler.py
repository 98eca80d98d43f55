"""Sampling of the access log at high request rates.

Requests with the same route and outcome are similar. Of similar requests, the first N of each
second are logged, and then every M-th, as in zap's sampler. Each line has the number of similar
requests skipped since the previous line."""

from __future__ import annotations

from typing import Final

from infergate.core.bounded_cache import BoundedCache

_MAX_KINDS: Final = 65_536
"""Maximum number of counted combinations of route and outcome, which take under 20 MB."""


class LogSampler:
    """Selects the ``first`` similar requests of each second, and then every ``every``-th similar
    request. If ``every`` is 0, only the first requests are selected."""

    def __init__(self, first: int, every: int, max_kinds: int = _MAX_KINDS) -> None:
        self._first: Final = first
        self._every: Final = every
        self._kinds: Final = BoundedCache[tuple[str, str], list[int]](max_kinds)
        """For each route and outcome: the second of the last request, the number of requests in
        that second, and the number of requests skipped since the last line."""

    def count_left_out(self, route: str, outcome: str, now: float) -> int | None:
        """Return the number of similar requests skipped since the last line, or None if this
        request is skipped."""
        kind, second = (route, outcome), int(now)
        counts = self._kinds.get(kind)
        if counts is None:
            counts = self._kinds[kind] = [second, 0, 0]
        elif counts[0] != second:
            counts[0], counts[1] = second, 0
        counts[1] += 1
        excess = counts[1] - self._first
        if excess > 0 and (not self._every or excess % self._every):
            counts[2] += 1
            return None
        left_out, counts[2] = counts[2], 0
        return left_out
