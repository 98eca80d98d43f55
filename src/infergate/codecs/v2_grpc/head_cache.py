"""Message heads, and a bounded cache for them.

The head of a ModelInferRequest or ModelInferResponse is everything in it but the id and the raw
tensor data. Clients send the same head over and over, so a message is split in one pass and the
parsed head is looked up. Messages in an unusual encoding are not split; the full check reads them,
and it alone reports errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from infergate.core.bounded_cache import BoundedCache
from infergate.core.limits import KIB, MIB
from infergate.core.tensor import Buffer

T = TypeVar("T")

MAX_CACHED_HEAD: Final = 2 * KIB
"""Maximum size of a cached head, in bytes."""
_STEPS: Final = range(MAX_CACHED_HEAD + 2)
"""The steps of splitting a message, one per field. A head of `MAX_CACHED_HEAD` bytes has at most
half as many fields, and describes at most half as many raw entries. Two more steps read the id and
detect the end."""
_HEAD_TAGS: Final = frozenset((number << 3 | 2) for number in (1, 2, 4, 5, 6, 7))
_ID_TAG: Final = 3 << 3 | 2
_LAST_SHIFT: Final = 28
"""The shift of the 7 bits in a length's last byte."""

MAX_WEIGHT: Final = MIB
"""The maximum weight of a generation, an upper bound of its memory in bytes."""
_MAX_SEEN: Final = 4096
_ENTRY_WEIGHT: Final = KIB
_BYTE_WEIGHT: Final = 24
"""Two bytes of a head may become a dictionary entry."""


RawEntry = tuple[int, int, int]
"""A raw entry's positions: the start of its field, the start of its value, and its end."""


class SplitMessage(NamedTuple):
    """A split message. `head` has `fields` fields; `id_field` is the whole field of the `id`."""

    head: bytes
    fields: int
    id: str
    id_field: Buffer
    raw: Sequence[RawEntry]

    def entries(self, data: Buffer) -> list[memoryview]:
        """Return the fields of the raw entries in `data`, without copying."""
        view = memoryview(data)
        return [view[start:end] for start, _, end in self.raw]


def split_message(  # noqa: C901, PLR0912 - calls per field would double the cost
    data: Buffer, raw_field: int
) -> SplitMessage | None:
    """Split `data` at its id and raw entries; None if the full check must read it.

    This runs before the access check, so no more fields are read than a head of `MAX_CACHED_HEAD`
    bytes describes.
    """
    raw_tag = raw_field << 3 | 2
    id_field: Buffer = b""
    id_text = ""
    raw: list[RawEntry] = []
    head_parts: list[Buffer] = []
    position = head_start = fields = size = 0
    end = len(data)
    try:
        for _ in _STEPS:
            if position >= end:
                break
            start = position
            tag = data[start]
            length = data[start + 1]
            position = start + 2
            if length > 0x7F:
                length &= 0x7F
                shift = 7
                while (byte := data[position]) > 0x7F:
                    length |= (byte & 0x7F) << shift
                    position += 1
                    if (shift := shift + 7) > _LAST_SHIFT:
                        return None
                length |= byte << shift
                position += 1
            value = position
            position += length
            if tag == raw_tag:
                raw.append((start, value, position))
            elif tag == _ID_TAG:
                if id_field or position > end or length > MAX_CACHED_HEAD:
                    return None
                id_field, id_text = data[start:position], str(data[value:position], "utf-8")
            elif tag in _HEAD_TAGS:
                fields += 1
                continue
            else:
                return None
            if start > head_start:
                size += start - head_start
                if size > MAX_CACHED_HEAD:
                    return None
                head_parts.append(data[head_start:start])
            head_start = position
        else:
            return None
    except (IndexError, UnicodeDecodeError):
        return None
    if position != end or size + end - head_start > MAX_CACHED_HEAD:
        return None
    if head_start < end:
        head_parts.append(data[head_start:end])
    return SplitMessage(b"".join(head_parts), fields, id_text, id_field, raw)


class MessageHeadCache(Generic[T]):
    """A cache of recently used heads in two generations: a full new one replaces the old one."""

    __slots__ = ("_newer", "_older", "_seen", "_weight")

    def __init__(self) -> None:
        self._newer: dict[bytes, T] = {}
        self._older: dict[bytes, T] = {}
        self._weight = 0
        self._seen: Final = BoundedCache[int, None](_MAX_SEEN)

    def has_recurred(self, head: bytes) -> bool:
        """Return whether `head` occurred recently. Some clients never repeat a head."""
        digest = hash(head)
        if digest in self._seen:
            return True
        self._seen[digest] = None
        return False

    def get(self, head: bytes) -> T | None:
        """Return the entry for `head`, or None."""
        entry = self._newer.get(head)
        if entry is None:
            entry = self._older.get(head)
            if entry is not None:
                self.store(head, entry)
        return entry

    def store(self, head: bytes, entry: T) -> None:
        """Cache `entry` for `head`, which is no longer than `MAX_CACHED_HEAD`."""
        weight = _ENTRY_WEIGHT + _BYTE_WEIGHT * len(head)
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            self._older, self._newer, self._weight = self._newer, {}, weight
        self._newer[head] = entry
