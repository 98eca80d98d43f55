"""The memory that Python allocates."""

import tracemalloc
from collections.abc import Callable


def peak_bytes(act: Callable[[], object]) -> int:
    """Return the maximum number of bytes that are allocated at the same time while ``act`` runs."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
