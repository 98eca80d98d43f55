"""Chooses the target of a request on a split route. All processes choose the same target.

A key is hashed to a position between 0 and 100. The targets' percentages fill this range from the
top down, and the rest of the range belongs to the route's own backend. While the percentages stay
the same, a key keeps its target. If a route has one target, and its percentage grows, keys move
only to that target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

_DIGEST_BYTES: Final = 8
_FULL_PERCENT: Final = 100.0


def hash_position(key: str) -> float:
    """Return the position of ``key``, in [0, 100)."""
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * _DIGEST_BYTES) * _FULL_PERCENT


def pick_target(percentages: Sequence[float], key: str) -> int | None:
    """Return the index of the target for ``key``, or None for the route's own backend."""
    lower_limit, position = _FULL_PERCENT, hash_position(key)
    for index, percent in enumerate(percentages):
        lower_limit -= percent
        if position >= lower_limit:
            return index
    return None
