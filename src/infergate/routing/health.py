"""The state of an endpoint according to its active health checks.

An endpoint is down after ``fall`` consecutive failed checks, and up again after ``rise``
consecutive successful checks (HAProxy: 3 and 2). It is up before its first check, and the first
check alone sets its state, as in HAProxy. Without these rules, a gateway that has just started
would reject clients or send requests to unreachable endpoints."""

from __future__ import annotations

from typing import Final


class EndpointHealth:
    """The health of one endpoint."""

    __slots__ = ("_contrary_checks", "_fall", "is_up", "rise", "was_checked")

    def __init__(self, rise: int = 2, fall: int = 3) -> None:
        self.rise: Final = rise
        self._fall: Final = fall
        self._contrary_checks = 0
        self.is_up = True
        self.was_checked = False
        """Whether any check has finished."""

    def record_check(self, *, succeeded: bool) -> bool:
        """Record a check. Return whether the check changed ``is_up``."""
        is_first, self.was_checked = not self.was_checked, True
        if succeeded is self.is_up:
            self._contrary_checks = 0
            return False
        self._contrary_checks += 1
        if not is_first and self._contrary_checks < (self.rise if succeeded else self._fall):
            return False
        self.is_up, self._contrary_checks = succeeded, 0
        return True
