"""The access log of a gateway that has more requests than anybody reads lines.

*Strategy.* As zap samples: of requests alike (one route, one outcome) the first so many of a second
are lines, and then each so-manieth. So nothing is left out of a quiet log, and no flood of one kind
hides another, say errors. A line tells how many were left out before it: nothing is uncounted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO, Final

from infergate.core.call import Call
from infergate.observe.access_log import NO_TURN, AccessLog, Line, told

_KINDS: Final = 65_536
"""Routes times outcomes that are remembered; under 20 MB."""


class Sampling:
    """Of requests alike: the ``first`` of each second, and ``each`` so many of those after; 0: none
    of them."""

    def __init__(self, first: int, each: int) -> None:
        self._first: Final = first
        self._each: Final = each
        self._kinds: Final[dict[tuple[str, str], list[int]]] = {}
        """The second, how many were in it, and how many were left out since the last line."""

    def left_out(self, route: str, outcome: str, now: float) -> int | None:
        """How many were left out before the one that has ended ``now``; None: it is, too."""
        kind, second = (route, outcome), int(now)
        counted = self._kinds.get(kind)
        if counted is None:
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            counted = self._kinds[kind] = [second, 0, 0]
        elif counted[0] != second:
            counted[0], counted[1] = second, 0
        counted[1] += 1
        beyond = counted[1] - self._first
        if beyond > 0 and (not self._each or beyond % self._each):
            counted[2] += 1
            return None
        left_out, counted[2] = counted[2], 0
        return left_out


class SampledLog(AccessLog):
    """Lines of those that ``sampling`` takes; the rest as of AccessLog."""

    def __init__(
        self,
        sampling: Sampling,
        line: Line,
        dropped: Callable[[], None],
        stream: BinaryIO | None = None,
        turn: AbstractContextManager[object] = NO_TURN,
    ) -> None:
        self._sampling: Final = sampling
        super().__init__(line, dropped, stream, turn)

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Tell a finished request, or leave it out. Never waits."""
        left_out = self._sampling.left_out(call.route, call.outcome, now)
        if left_out is not None:
            self._tell(told(call, seconds, now, left_out))
