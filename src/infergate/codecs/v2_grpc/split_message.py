"""Splits a message into its head, its id and its raw tensor data.

The head of a ModelInferRequest or ModelInferResponse is the message without the id and the raw
tensor data. Many messages have the same head, so the parsed head is looked up in a
`MessageHeadCache`. Messages in an unusual encoding are not split; the full check (`infer_request`,
`infer_response`) reads them. Only the full check reports errors.

Many messages of a client differ only in the text of the id and in the raw data. `MessageLayouts`
keeps the positions of the id and the raw data, keyed by the length of the message. A later message
that is equal in all other bytes, including all tags and lengths, is split at the same positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from infergate.codecs.message_heads import MAX_CACHED_HEAD, RawEntry
from infergate.codecs.protos.wire_scanner import MalformedMessageError, read_varint
from infergate.core.bounded_cache import BoundedCache
from infergate.core.tensor import Buffer

_STEPS: Final = range(MAX_CACHED_HEAD + 2)
"""The steps of splitting a message, one per field. A head of `MAX_CACHED_HEAD` bytes has at most
`MAX_CACHED_HEAD` / 2 fields, and each field describes at most one raw entry. Two more steps read
the id and detect the end."""
_HEAD_TAGS: Final = frozenset((number << 3 | 2) for number in (1, 2, 4, 5, 6, 7))
_ID_TAG: Final = 3 << 3 | 2
_MAX_LAYOUTS: Final = 32
_MAX_RAW_ENTRIES: Final = 16
"""Maximum number of raw entries in a layout."""
_MAX_LENGTH_BYTES: Final = 5


class SplitMessage(NamedTuple):
    """A split message. `fields` is the number of fields in `head`. `id_field` is the encoded field
    of `id`, and starts at `id_start`."""

    head: bytes
    fields: int
    id: str
    id_field: Buffer
    raw: Sequence[RawEntry]
    id_start: int

    def entries(self, data: Buffer) -> list[memoryview]:
        """Return views of the raw entries in `data`, including their tags and lengths."""
        view = memoryview(data)
        return [view[start:end] for start, _, end in self.raw]


_new_tuple: Final = tuple.__new__
"""Creates a ``SplitMessage`` at a third of the cost of calling the class."""


def split_message(  # noqa: C901, PLR0912 - a call per field would double the cost
    data: Buffer, raw_field: int
) -> SplitMessage | None:
    """Split `data` at its id and raw entries. Return None if the full check must read it.

    This function runs before the access check, so the number of fields that it reads is limited.
    """
    raw_tag = raw_field << 3 | 2
    id_field: Buffer = b""
    id_text = ""
    raw: list[RawEntry] = []
    head_parts: list[Buffer] = []
    position = head_start = fields = size = id_start = 0
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
                id_start = start
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
    head = b"".join(head_parts)
    return _new_tuple(SplitMessage, (head, fields, id_text, id_field, raw, id_start))


class _Layout(NamedTuple):
    """The layout of the message `split`. `shared` are the parts that another message with this
    layout must contain, with their positions. `id_text_start` and `id_end` are the bounds of the
    id's text, or 0 if there is no id."""

    split: SplitMessage
    shared: Sequence[tuple[bytes, int]]
    id_text_start: int
    id_end: int


class MessageLayouts:
    """A cache of message layouts. It keeps the latest layout for each message length."""

    __slots__ = ("_layouts",)

    def __init__(self) -> None:
        self._layouts: Final = BoundedCache[int, _Layout](_MAX_LAYOUTS)

    def split(self, data: Buffer) -> SplitMessage | None:
        """Return the result of `split_message`, or None if `data` has no known layout."""
        layout = self._layouts.get(len(data))
        if layout is None or type(data) is not bytes:
            return None
        split, shared, id_text_start, id_end = layout
        for part, start in shared:
            if not data.startswith(part, start):
                return None
        if not id_end:
            return split
        try:
            id_text = str(data[id_text_start:id_end], "utf-8")
        except UnicodeDecodeError:
            return None
        head, fields, _, _, raw, id_start = split
        id_field = data[id_start:id_end]
        return _new_tuple(SplitMessage, (head, fields, id_text, id_field, raw, id_start))

    def keep(self, data: Buffer, split: SplitMessage) -> None:
        """Keep the layout of `data`, which was split into `split`. Layouts with many raw entries
        are not kept."""
        if type(data) is not bytes or len(split.raw) > _MAX_RAW_ENTRIES:
            return
        id_end = split.id_start + len(split.id_field)
        id_text_start = id_end - len(split.id.encode())
        differing = [(value, end) for _, value, end in split.raw]
        if id_end:
            differing.append((id_text_start, id_end))
            differing.sort()
        shared: list[tuple[bytes, int]] = []
        position = 0
        for start, end in (*differing, (len(data), len(data))):
            if start > position:
                shared.append((data[position:start], position))
            position = end
        self._layouts[len(data)] = _Layout(split, shared, id_text_start, id_end)
