"""Measures the memory that Python allocates."""

import tracemalloc
from collections.abc import Callable


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the maximum number of bytes that are allocated while ``function`` runs."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
