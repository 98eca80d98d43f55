"""The state of an endpoint by its active health checks.

- An endpoint is down after ``fall`` consecutive failed checks, and up again after ``rise``
  consecutive successful ones (HAProxy: 3 and 2).
- It is up before its first check, and the first check alone decides (HAProxy): otherwise a gateway
  that has just started would reject clients, or send them to endpoints that are not there.
"""

from __future__ import annotations

from typing import Final


class Health:
    """The health of one endpoint."""

    __slots__ = ("_fall", "_row", "rise", "told", "up")

    def __init__(self, rise: int = 2, fall: int = 3) -> None:
        self.rise: Final = rise
        self._fall: Final = fall
        self._row = 0
        self.up = True
        self.told = False
        """Whether a check has ended yet."""

    def checked(self, *, well: bool) -> bool:
        """Record one more check; return whether it changed ``is_up``."""
        is_first, self.told = not self.told, True
        if well is self.up:
            self._row = 0
            return False
        self._row += 1
        if not is_first and self._row < (self.rise if well else self._fall):
            return False
        self.up, self._row = well, 0
        return True
