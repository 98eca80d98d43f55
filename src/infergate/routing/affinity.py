"""Chooses the endpoint that owns a sequence or a key. All processes choose the same endpoint.

The algorithm is weighted rendezvous hashing: each endpoint's name, hashed with the key, yields a
number u between 0 and 1, and the endpoint with the greatest u^(1/weight) is the owner. Nothing is
stored (docs/decisions/0013-sequences-by-hash.md).

The order of the endpoints does not matter. If an endpoint is added or removed, only the keys that
the endpoint gains or loses move. A sequence whose ID is an integer has the same owner as a sequence
with the same ID as text, because protocols differ in the type of the ID.

References: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998;
Schindler and Schomaker, "Weighted distributed hash tables", 2009.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import log
from typing import Final, Protocol, TypeVar

from infergate.core.sequences import SequenceKey

_DIGEST_BYTES: Final = 8
_HASH_RANGE: Final = 1 << 8 * _DIGEST_BYTES


class HashCandidate(Protocol):
    """An endpoint that may own sequences or keys."""

    @property
    def name(self) -> bytes:
        """The endpoint's unique name, which is the same in all gateways."""
        ...

    @property
    def weight(self) -> float:
        """The weight relative to other endpoints, above 0."""
        ...


N = TypeVar("N", bound=HashCandidate)


def hash_key(sequence: SequenceKey) -> str:
    """Return the key under which ``sequence`` is hashed."""
    return f"{sequence.model}\0{sequence.id}"


def rendezvous_owner(key: str, candidates: Iterable[N]) -> N:
    """Return the owner of ``key`` among ``candidates``, in linear time."""
    hashed = _hash(key.encode(errors="surrogatepass"))
    return max(candidates, key=lambda candidate: _score(hashed, candidate))


def _score(hashed: bytes, candidate: HashCandidate) -> tuple[float, bytes]:
    """Return the logarithm of u^(1/weight), which ranks candidates in the same order, and the
    digest, which breaks ties between logarithms that rounding makes equal."""
    digest = _hash(hashed + candidate.name)
    return log((int.from_bytes(digest) + 1) / _HASH_RANGE) / candidate.weight, digest


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
