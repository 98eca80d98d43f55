"""Which endpoint keeps a sequence, or is asked with a key: a pure decision, the same in every
process.

*Strategy.* Weighted rendezvous hashing: the name of each endpoint, hashed with the key, gives a
number u between 0 and 1; the one with the greatest u^(1/weight) is taken. Nothing is remembered;
docs/decisions/0013 says why.
*Rule 1.* The order of the endpoints does not matter. Where one is added or taken away, only keys
that come to it or were on it move. Of all keys each has the share that its weight is of all.
*Rule 2.* Ids of one spelling are kept together, integers or text: protocols spell them differently.

References: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998;
Schindler and Schomaker, "Weighted distributed hash tables", 2009.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import log
from typing import Final, Protocol, TypeVar

from infergate.core.sequences import SequenceName

_DIGEST: Final = 8
_SPAN: Final = 1 << 8 * _DIGEST


class Named(Protocol):
    """What is chosen from: ``name`` as all gateways have it, ``weight`` above 0."""

    @property
    def name(self) -> bytes:
        """Its own among all."""
        ...

    @property
    def weight(self) -> float:
        """Its share, beside the others'."""
        ...


N = TypeVar("N", bound=Named)


def sequence_key(sequence: SequenceName) -> str:
    """What stands for ``sequence``."""
    return f"{sequence.model}\0{sequence.id}"


def keeper(key: str, among: Iterable[N]) -> N:
    """The one of ``among`` that ``key`` belongs to. Linear in its length and in their number."""
    hashed = _hash(key.encode(errors="surrogatepass"))
    return max(among, key=lambda each: _score(hashed, each))


def _score(hashed: bytes, each: Named) -> tuple[float, bytes]:
    """Its logarithm, which is as good. Digests decide between numbers too near to tell apart."""
    digest = _hash(hashed + each.name)
    return log((int.from_bytes(digest) + 1) / _SPAN) / each.weight, digest


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()
