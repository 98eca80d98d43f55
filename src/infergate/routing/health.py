"""The state of an endpoint according to its active health checks.

An endpoint is down after ``fall`` consecutive failed checks, and up again after ``rise``
consecutive successful checks (by default 3 and 2, as in HAProxy). Before its first check, an
endpoint is up, so that a gateway that has just started accepts clients. The first check alone sets
the state, as in HAProxy, so that the gateway soon stops using unreachable endpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class EndpointHealth:
    """The result of the active health checks of one endpoint."""

    rise: int = 2
    fall: int = 3
    is_up: bool = True
    was_checked: bool = False
    """Whether any check has finished."""
    _contrary_checks: int = 0
    """Number of consecutive checks whose results differ from ``is_up``."""

    def record_check(self, *, succeeded: bool) -> bool:
        """Record a check. Return whether the check changed ``is_up``."""
        is_first, self.was_checked = not self.was_checked, True
        if succeeded is self.is_up:
            self._contrary_checks = 0
            return False
        self._contrary_checks += 1
        if not is_first and self._contrary_checks < (self.rise if succeeded else self.fall):
            return False
        self.is_up, self._contrary_checks = succeeded, 0
        return True
