"""Splits a message into its head, its id and its raw tensor data.

The head of a ModelInferRequest or ModelInferResponse is the whole message except the id and the raw
tensor data. Clients send the same head over and over, so a message is split in one pass and the
parsed head is looked up in a `MessageHeadCache`. Messages in an unusual encoding are not split. The
full check reads them, and only the full check reports errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from infergate.codecs.message_heads import MAX_CACHED_HEAD, RawEntry
from infergate.codecs.protos.wire_scanner import MalformedMessageError, read_varint
from infergate.core.tensor import Buffer

_STEPS: Final = range(MAX_CACHED_HEAD + 2)
"""The steps of splitting a message, one per field. A head of `MAX_CACHED_HEAD` bytes has at most
half as many fields, and describes at most half as many raw entries. Two more steps read the id and
detect the end."""
_HEAD_TAGS: Final = frozenset((number << 3 | 2) for number in (1, 2, 4, 5, 6, 7))
_ID_TAG: Final = 3 << 3 | 2
_MAX_LENGTH_BYTES: Final = 5


class SplitMessage(NamedTuple):
    """A split message. `fields` counts the fields of `head`. `id_field` is the encoded `id`."""

    head: bytes
    fields: int
    id: str
    id_field: Buffer
    raw: Sequence[RawEntry]

    def entries(self, data: Buffer) -> list[memoryview]:
        """Return the fields of the raw entries in `data`. They are not copied."""
        view = memoryview(data)
        return [view[start:end] for start, _, end in self.raw]


_new_tuple: Final = tuple.__new__
"""Creates a ``SplitMessage`` at a third of the cost of calling the class."""


def split_message(  # noqa: C901, PLR0912 - a call per field would double the cost
    data: Buffer, raw_field: int
) -> SplitMessage | None:
    """Split `data` at its id and raw entries. Return None if the full check must read it.

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
                length, position = read_varint(data, start + 1, _MAX_LENGTH_BYTES)
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
    except (IndexError, UnicodeDecodeError, MalformedMessageError):
        return None
    if position != end or size + end - head_start > MAX_CACHED_HEAD:
        return None
    if head_start < end:
        head_parts.append(data[head_start:end])
    return _new_tuple(SplitMessage, (b"".join(head_parts), fields, id_text, id_field, raw))
