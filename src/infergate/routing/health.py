"""Whether an endpoint is well, by what it is asked now and then (active health checks).

*Rule 1.* It is taken for down after ``fall`` checks in a row that failed, and for up again after
``rise`` that did not (HAProxy: 3 and 2).
*Rule 2.* Before its first check it is taken for up, and the first decides by itself (HAProxy): else
a gateway that has just started would turn clients away, or send them to what is not there.
"""

from __future__ import annotations

from typing import Final


class Health:
    """Of one endpoint."""

    __slots__ = ("_fall", "_row", "rise", "told", "up")

    def __init__(self, rise: int = 2, fall: int = 3) -> None:
        self.rise: Final = rise
        self._fall: Final = fall
        self._row = 0
        self.up = True
        self.told = False
        """Whether there was a check at all."""

    def checked(self, *, well: bool) -> bool:
        """One more check has ended; whether that changed ``up``."""
        first, self.told = not self.told, True
        if well is self.up:
            self._row = 0
            return False
        self._row += 1
        if not first and self._row < (self.rise if well else self._fall):
            return False
        self.up, self._row = well, 0
        return True
