"""Heads of messages, and a bounded memory of what is known of them.

*Strategy.* The head of a ModelInferRequest or ModelInferResponse is all of it but the id and the
raw entries: names, datatypes, shapes, parameters. Clients send the same head over and over. So a
message is taken apart in one pass, and what reading a head found out, which is dear, is looked up.

*Rule 1.* Only messages spelt as every client spells them are taken apart; all others, good or bad,
are for the full check. It alone says what is wrong.
*Rule 2.* The memory has a limit by weight, which is over the bytes it takes (a test measures them),
whatever clients send. Forgetting costs as much as remembering did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from infergate.core.limits import KIB, MIB
from infergate.core.tensor import Buffer

T = TypeVar("T")

LONGEST: Final = 2 * KIB
"""Bytes of a head that may be remembered."""
_STEPS: Final = range(LONGEST + 2)
"""One for each field of a message that is taken apart: a head of ``LONGEST`` has no more than half
as many, and describes no more raw entries; one is the id, and the last step finds the end."""
_HEAD_TAGS: Final = frozenset((number << 3 | 2) for number in (1, 2, 4, 5, 6, 7))
_ID_TAG: Final = 3 << 3 | 2
_LAST_SHIFT: Final = 28
"""Of the 7 bits of a length's last byte."""

HEAVIEST: Final = MIB
"""Of a generation, by weight. Entries weigh more than the bytes they take."""
_MOST_SEEN: Final = 4096
_ENTRY_WEIGHT: Final = KIB
_BYTE_WEIGHT: Final = 24
"""What two bytes of a head may become: an entry of a dictionary."""


Entry = tuple[int, int, int]
"""Where one raw entry lies: its field's start, its value's, and the end of both."""


class Apart(NamedTuple):
    """A message taken apart: ``head`` is what is not the id or a raw entry, ``fields`` how many;
    ``own`` the whole field of the ``id``, which is text; ``raw`` where the raw entries lie."""

    head: bytes
    fields: int
    id: str
    own: Buffer
    raw: Sequence[Entry]

    def entries(self, data: Buffer) -> list[memoryview]:
        """The fields of the raw entries in ``data``, not copied."""
        view = memoryview(data)
        return [view[start:end] for start, _, end in self.raw]


def take_apart(  # noqa: C901, PLR0912 - one loop: a call a field would double its cost
    data: Buffer, raw_number: int
) -> Apart | None:
    """``data`` taken apart at its id and its raw entries; None where that is not for here (Rule
    1): a field or a tag that no client writes, an id twice, a long head or id, a message cut short.

    It runs before the access check, so no more is walked than a head of ``LONGEST`` describes."""
    raw_tag = raw_number << 3 | 2
    own: Buffer = b""
    text = ""
    raw: list[Entry] = []
    runs: list[Buffer] = []
    position = kept = count = size = 0
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
                if own or position > end or length > LONGEST:
                    return None
                own, text = data[start:position], str(data[value:position], "utf-8")
            elif tag in _HEAD_TAGS:
                count += 1
                continue
            else:
                return None
            if start > kept:
                size += start - kept
                if size > LONGEST:
                    return None
                runs.append(data[kept:start])
            kept = position
        else:
            return None
    except (IndexError, UnicodeDecodeError):
        return None
    if position != end or size + end - kept > LONGEST:
        return None
    if kept < end:
        runs.append(data[kept:end])
    return Apart(b"".join(runs), count, text, own, raw)


class Heads(Generic[T]):
    """What is known of heads, the latest used of them: in two generations, the elder of which is
    forgotten whole when the younger is full."""

    __slots__ = ("_elder", "_seen", "_weight", "_younger")

    def __init__(self) -> None:
        self._younger: dict[bytes, T] = {}
        self._elder: dict[bytes, T] = {}
        self._weight = 0
        self._seen: set[int] = set()

    def comes_again(self, head: bytes) -> bool:
        """Whether ``head`` came before, lately: else it is not worth learning. Some clients put
        something new into each."""
        mark = hash(head)
        if mark in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def get(self, head: bytes) -> T | None:
        """What is known of ``head``."""
        known = self._younger.get(head)
        if known is None:
            known = self._elder.get(head)
            if known is not None:
                self.keep(head, known)
        return known

    def keep(self, head: bytes, known: T) -> None:
        """Remember what is ``known`` of ``head``, which is no longer than ``LONGEST``."""
        weight = _ENTRY_WEIGHT + _BYTE_WEIGHT * len(head)
        self._weight += weight
        if self._weight > HEAVIEST:
            self._elder, self._younger, self._weight = self._younger, {}, weight
        self._younger[head] = known
