"""Header blocks that differ from an earlier block only in some values, such as grpc-timeout, a
request id or a trace. Most fields of a client are the same in each request; a changed value must
not cause the complete block to be decoded and validated again.

A *template* is a decoded block with the positions of the values that changed in later blocks. Only
blocks without an effect on the dynamic table become templates. A block that equals a template
except for such values therefore has the template's fields with the new values. Any other block is
decoded from scratch. Only decoding from scratch reports errors."""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack.exceptions import HPACKError

from infergate.core.bounded_cache import BoundedCache
from infergate.transport.http2 import huffman, limits
from infergate.transport.http2.header_blocks import FIXED_NAMES, VALUE, HeaderBlock
from infergate.transport.http2.hpack_decoder import (
    MAX_PREFIX_LENGTH,
    STATIC_FIELDS,
    read_integer,
    read_string,
)


class _SplitBlock(NamedTuple):
    """An encoded block, split at the values that may change. `skeleton` has one part before each
    value, and the part after the last value. The encoded `values` start with their length."""

    skeleton: tuple[bytes, ...]
    names: tuple[str, ...]
    values: tuple[bytes, ...]


def _split(block: bytes) -> _SplitBlock:
    """Split a block that was decoded without an error and uses only the static table."""
    skeleton: list[bytes] = []
    names: list[str] = []
    values: list[bytes] = []
    start = position = 0
    while position < len(block):
        first = block[position]
        if first & 0x80:
            _, position = read_integer(block, position, 0x7F)
            continue
        if first & 0xE0 == 0x20:
            _, position = read_integer(block, position, 0x1F)
            continue
        index, position = read_integer(block, position, 0x3F if first & 0x40 else 0x0F)
        if index:
            name = STATIC_FIELDS[index - 1][0]
        else:
            name, position = read_string(block, position)
        value_start = position
        _, position = read_string(block, position)
        if name[:1] != b":" and name not in FIXED_NAMES:
            skeleton.append(block[start:value_start])
            names.append(name.decode("ascii"))
            values.append(block[value_start:position])
            start = position
    skeleton.append(block[start:])
    return _SplitBlock(tuple(skeleton), tuple(names), tuple(values))


class _Template:
    """A decoded block and the values in it that have changed."""

    def __init__(self, split: _SplitBlock) -> None:
        self.skeleton: Final = split.skeleton
        self.values = split.values
        self._varying: frozenset[int] = frozenset()  # positions in `values` of values that vary
        self._fields: HeaderBlock | None = None  # None if no value has changed yet
        self._fixed_size = 0  # the size of the fields without the varying values
        self._parts: list[bytes] = []  # the bytes before each varying value
        self._tail = b""
        self._names: list[str] = []
        self._indices: list[int] = []  # positions of the varying values in `HeaderBlock.pairs`

    def update(self, split: _SplitBlock, fields: HeaderBlock) -> None:
        """Mark the values that differ in `split` as varying. `split` has the same skeleton as this
        template."""
        self._varying |= {
            position
            for position, value in enumerate(split.values)
            if value != self.values[position]
        }
        self.values = split.values
        self._fields, self._fixed_size = fields, fields.size
        self._parts, self._names, self._indices = [], [], []
        positions = {name: index for index, (name, _) in enumerate(fields.pairs)}
        fixed = b""
        for position, name in enumerate(split.names):
            fixed += split.skeleton[position]
            if position not in self._varying:
                fixed += split.values[position]
                continue
            index = positions[name]
            self._parts.append(fixed)
            self._names.append(name)
            self._indices.append(index)
            self._fixed_size -= len(fields.pairs[index][1])
            fixed = b""
        self._tail = fixed + split.skeleton[-1]

    def read(self, block: bytes, max_size: int) -> HeaderBlock | None:
        """Return the fields of `block`. Return None if it differs in more than the varying values,
        has an invalid value or is larger than `max_size`."""
        fields = self._fields
        if fields is None:
            return None
        try:
            raw = self._read_values(block)
        except (IndexError, HPACKError):
            return None
        if raw is None:
            return None
        size = self._fixed_size
        changed: list[tuple[str, str]] = []
        pairs = list(fields.pairs)
        for name, index, value in zip(self._names, self._indices, raw, strict=True):
            text = value.decode("latin-1")
            if not text.isprintable() and VALUE.fullmatch(value) is None:
                return None
            size += len(text)
            pairs[index] = pair = name, text
            changed.append(pair)
        if size > max_size:
            return None
        result = HeaderBlock((), fields)
        result.pairs, result.changed, result.size = tuple(pairs), changed, size
        return result

    def _read_values(self, block: bytes) -> list[bytes] | None:
        """Return the varying values of `block`, or None if the block also differs in other parts.
        Raises IndexError and HPACKError."""
        values: list[bytes] = []
        encoded: list[int] = []  # indices of Huffman-coded values, decoded if the block fits
        position = 0
        if not block.endswith(self._tail):
            return None
        for part in self._parts:
            if not block.startswith(part, position):
                return None
            position += len(part)
            first = block[position]
            length = first & MAX_PREFIX_LENGTH
            if length < MAX_PREFIX_LENGTH:
                position += 1
            else:
                length, position = read_integer(block, position, MAX_PREFIX_LENGTH)
            if first > MAX_PREFIX_LENGTH:
                encoded.append(len(values))
            start = position
            position += length
            values.append(block[start:position])
        # If the last value is truncated, `position` is past the end of the block.
        if position + len(self._tail) != len(block):
            return None
        for index in encoded:
            values[index] = huffman.decode(values[index])
        return values


class HeaderTemplates:
    """The templates of a connection, with the most recently used first. If the list is full, a new
    template replaces the last template, so that blocks that occur once do not displace templates in
    use."""

    def __init__(self, max_size: int) -> None:
        """`max_size` is the largest decoded size of a block."""
        self._max_size: Final = max_size
        self._templates: list[_Template] = []
        self._seen_names: Final = BoundedCache[int, None](limits.MAX_CACHED_BLOCKS)

    def __len__(self) -> int:
        return len(self._templates)

    def clear(self) -> None:
        """Forget all templates."""
        self._templates.clear()

    def read(self, block: bytes) -> HeaderBlock | None:
        """Return the fields of `block`, or None if it fits no template."""
        templates, max_size = self._templates, self._max_size
        for index, template in enumerate(templates):
            fields = template.read(block, max_size)
            if fields is not None:
                if index:
                    templates.insert(0, templates.pop(index))
                return fields
        return None

    def add(self, block: bytes, fields: HeaderBlock) -> None:
        """Create a template from `block`, or extend the template with the same skeleton.

        `fields` are the decoded fields of `block`. `block` must not affect the dynamic table, and
        `read` must have returned None for it."""
        names = tuple([name for name, _ in fields.pairs])
        if fields.is_malformed or len(set(names)) != len(names):
            return
        # Splitting costs as much as decoding, so blocks with new names are not split.
        digest = hash(names)
        if digest not in self._seen_names:
            self._seen_names[digest] = None
            return
        split = _split(block)
        if not split.values:
            return
        for template in self._templates:
            if template.skeleton == split.skeleton:
                template.update(split, fields)
                return
        if len(self._templates) >= limits.MAX_HEADER_TEMPLATES:
            self._templates.pop()
        self._templates.append(_Template(split))
