"""A bounded cache of validated message heads, for the codecs whose messages have raw tensor data.

The head of a message is the message without its id and tensor data. Clients repeat heads, so the
cache keeps the result of validating a head for later messages with the same head. All other
messages get the full check, and only the full check reports errors
(docs/decisions/0015-message-header-cache.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from infergate.core.bounded_cache import BoundedCache, GenerationalCache
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import KIB, MIB
from infergate.core.tensor import Buffer, Tensor, check_data

T = TypeVar("T")

MAX_CACHED_HEAD: Final = 2 * KIB
"""Maximum size of a cached head, in bytes."""
MAX_WEIGHT: Final = 2 * MIB
"""Maximum weight of a cache. The weight is an upper bound on the cache's memory in bytes."""
_MAX_SEEN: Final = 4096
_ENTRY_WEIGHT: Final = KIB
_BYTE_WEIGHT: Final = 24
"""Maximum memory in bytes that an entry takes per byte of its head. For example, two bytes of
protobuf may become a dictionary entry."""

RawEntry = tuple[int, int, int]
"""The positions of a raw entry: the start of the field, and the start and end of the value."""


class MessageHeadCache(Generic[T]):
    """A cache of recently used heads."""

    __slots__ = ("_byte_weight", "_seen", "entries")

    def __init__(self, byte_weight: int = _BYTE_WEIGHT) -> None:
        """``byte_weight`` is the maximum memory in bytes that an entry takes per byte of its
        head."""
        self._byte_weight: Final = byte_weight
        self.entries: Final = GenerationalCache[bytes, T](MAX_WEIGHT // _ENTRY_WEIGHT, MAX_WEIGHT)
        """The entries by head. A lookup in the newer generation before ``get`` saves most calls of
        ``get``."""
        self._seen: Final = BoundedCache[int, None](_MAX_SEEN)

    def has_recurred(self, head: bytes) -> bool:
        """Return whether `head` occurred recently, and remember `head`. Callers store only heads
        that recur, because some clients never repeat a head."""
        digest = hash(head)
        if digest in self._seen:
            return True
        self._seen[digest] = None
        return False

    def get(self, head: bytes) -> T | None:
        entry = self.entries.get(head)
        return self.entries.revive(head) if entry is None else entry

    def store(self, head: bytes, entry: T) -> None:
        """Cache `entry` for `head`, which has at most `MAX_CACHED_HEAD` bytes."""
        self.entries.add(head, entry, _ENTRY_WEIGHT + self._byte_weight * len(head))


class TensorLayout:
    """The tensors that a head describes, and the sizes that their raw entries must have."""

    __slots__ = ("_described", "_sizes", "has_bytes_tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._described: Final = tuple(replace(tensor, data=b"") for tensor in tensors)
        self._sizes: Final = [
            None if tensor.datatype is Datatype.BYTES else len(tensor.data) for tensor in tensors
        ]
        self.has_bytes_tensors: Final = None in self._sizes

    def fits(self, raw: Sequence[RawEntry], data: Buffer) -> bool:
        """Return whether the `raw` entries of `data` are valid data for these tensors."""
        if len(raw) != len(self._sizes):
            return False
        for index, size in enumerate(self._sizes):
            _, value, end = raw[index]
            if end - value != size and (
                size is not None or not self._is_valid(index, data[value:end])
            ):
                return False
        return True

    def _is_valid(self, index: int, data: Buffer) -> bool:
        tensor = self._described[index]
        try:
            check_data(tensor.name, tensor.datatype, tensor.shape, data)
        except GatewayError:
            return False
        return True

    def read(self, raw: Sequence[RawEntry], data: Buffer) -> tuple[Tensor, ...]:
        """Return the tensors with the `raw` entries of `data`. `fits` must have returned True."""
        view = memoryview(data)
        tensors: list[Tensor] = []
        for tensor, (_, value, end) in zip(self._described, raw, strict=True):
            elements = view[value:end]
            tensors.append(
                Tensor(tensor.name, tensor.datatype, tensor.shape, elements, tensor.parameters)
            )
        return tuple(tensors)
