"""Which share of a route's requests goes where: a pure decision, the same in every process.

*Strategy.* A key is hashed to a place between 0 and 100. From the top down each target has as much
of it as its percentage, and the route's own backend has what is left.
*Rule.* A key goes where it went before, for as long as the percentages are the same. Where that of
the first target grows, keys come to it and none leaves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

_DIGEST: Final = 8
_WHOLE: Final = 100.0


def place(key: str) -> float:
    """Where ``key`` lies, from 0 up to, but not, 100."""
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * _DIGEST) * _WHOLE


def pick(percentages: Sequence[float], key: str) -> int | None:
    """Which of the targets with ``percentages`` a request with ``key`` goes to; None: to none of
    them."""
    bound, at = _WHOLE, place(key)
    for index, percent in enumerate(percentages):
        bound -= percent
        if at >= bound:
            return index
    return None
