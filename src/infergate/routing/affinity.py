"""Which endpoint keeps a sequence: a pure decision, the same in every process.

*Strategy.* Rendezvous hashing: of all endpoints the one whose name, hashed with the sequence, gives
the greatest number. Nothing is remembered; docs/decisions/0013 says why.
*Rule 1.* The order of the endpoints does not matter. Where one is added or taken away, only
sequences that come to it or were on it move.
*Rule 2.* Ids of one spelling are kept together, integers or text: protocols spell them differently.

Reference: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from infergate.core.sequences import SequenceName

T = TypeVar("T")
_DIGEST: Final = 8


class Rendezvous(Generic[T]):
    """``endpoints`` by names that all gateways give them."""

    def __init__(self, endpoints: Mapping[str, T]) -> None:
        self._endpoints: Final = tuple(
            (name.encode(), endpoint) for name, endpoint in sorted(endpoints.items())
        )

    def keeper(self, sequence: SequenceName) -> T:
        """Where ``sequence`` is kept. Linear in its length and in the number of endpoints."""
        text = f"{sequence.model}\0{sequence.id}".encode(errors="surrogatepass")
        key = _hash(text)
        return max(self._endpoints, key=lambda each: _hash(key + each[0]))[1]


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()
