"""The outline of a JSON text: its brackets, braces, commas and colons outside strings.

From the outline, ``read_shape`` determines the shape of nested arrays, if they are rectangular, in
a few passes over bytes and without an object per array. For example, ``[[1.5, 2], [3, 4]]`` has the
outline ``[[,],[,]]``. A list of one element has the same outline as an empty list. Only the number
of elements distinguishes the two lists.

*Rule 1.* The text must be valid JSON. For any other text, the results have no meaning.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.json_tensors.json_document import STRING

Shape = tuple[int, ...]
MAX_DEPTH: Final = 255
"""Maximum number of dimensions that ``read_shape`` finds."""
_MAX_QUOTES: Final = 1 << 16
"""Maximum number of quotes around strings that contain structural characters. A text with more such
quotes has no outline."""
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{},:"\\'))
_BASE64_OBJECT: Final = b"{:}"
"""The outline of an object with one scalar member."""


def outline_of(text: bytes) -> bytes | None:
    """Return the outline of ``text``, or None if too many strings contain structural characters."""
    structure = text.translate(None, _NOT_STRUCTURE)
    if b"\\" in structure:
        structure = STRING.sub(b"", text).translate(None, _NOT_STRUCTURE)
    if structure.count(b'"') > _MAX_QUOTES:
        # Adjacent quotes do not change whether a character is inside a string.
        structure = structure.replace(b'""', b"")
        if structure.count(b'"') > _MAX_QUOTES:
            return None
    return b"".join(structure.split(b'"')[::2])


def read_shape(outline: bytes, position: int) -> tuple[Shape, int] | None:
    """Return the shape of the value at ``position`` and the position after the value. Return None
    if the value is not a scalar, a base64 object or a rectangular array. The last dimension of an
    empty array is 1, as for an array of one element."""
    if outline[position : position + 1] != b"[":
        if outline[position : position + 1] != b"{":
            return (), position
        end = position + len(_BASE64_OBJECT)
        return ((), end) if outline[position:end] == _BASE64_OBJECT else None
    beginning = outline[position : position + MAX_DEPTH + 1]
    depth = len(beginning) - len(beginning.lstrip(b"["))
    sizes: list[int] = []
    item = b""
    for level in range(depth):  # from the innermost array outwards
        begin = position + depth - level + len(item)
        size = _count_commas(outline, begin, len(item) + 1) + 1
        end = begin + (size - 1) * (len(item) + 1)
        if outline[end : end + 1] != b"]":
            return None
        sizes.append(size)
        item = b"[" + (item + b",") * (size - 1) + item + b"]"
    if not outline.startswith(item, position):
        return None
    return tuple(reversed(sizes)), position + len(item)


def _count_commas(outline: bytes, begin: int, step: int) -> int:
    """Return the number of consecutive commas at ``begin``, ``begin + step``, ``begin + 2 * step``
    and so on."""
    count, part = 0, 64
    while True:
        # The parts grow, so that the time is proportional to the number of commas.
        characters = outline[begin : begin + part * step : step]
        commas = len(characters) - len(characters.lstrip(b","))
        count += commas
        if commas < part:
            return count
        begin += part * step
        part *= 2
