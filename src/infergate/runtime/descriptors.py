"""How many files and sockets the process may have open.

Clients' connections are kept below what the system allows: what is left is for backends, files and
the admin listener. A process whose descriptors are used up can neither answer nor tell so.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_SHARE: Final = 3, 4
"""Of all descriptors, how many clients may have."""


def allow_most() -> None:
    """Raise the limit as far as the system lets the process, as Go's programs do: the low one is
    for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_clients(wanted: int) -> int:
    """``wanted`` connections, or as many as the limit of now has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    part, whole = _SHARE
    most = max(1, soft * part // whole)
    if most < wanted:
        log.warning(
            "limits.connections: %d instead of %d, as the process may open %d files",
            most,
            wanted,
            soft,
        )
    return min(wanted, most)


def in_use() -> int:
    """Descriptors that are open now."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # of which one is for looking
