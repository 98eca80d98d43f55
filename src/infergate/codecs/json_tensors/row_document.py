"""A JSON object whose members hold rows or columns of tensors.

*Rule 1.* simdjson parses a document. If simdjson rejects the document, the standard library parses
the document, because some servers and clients write NaN, Infinity, Inf, and bytes that are not
UTF-8. The standard library ignores text after the object.

*Rule 2.* A repeated name in an object is an error, because some servers use the first member and
others use the last member."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

import simdjson

from infergate.codecs.json_tensors.json_document import (
    LITERALS,
    MAX_SLOW_BYTES_ON_LOOP,
    Node,
    ObjectMembers,
    check_nesting,
    check_surrogates,
    member_names,
)
from infergate.codecs.json_tensors.outline import Shape, outline_of, read_shape
from infergate.core.errors import bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.records import record

_INF: Final = re.compile(r'"(?:[^"\\]++|\\.?)*+"?|\bInf\b', re.DOTALL)
_WHITE_SPACE: Final = re.compile(r"[ \t\r\n]*")


@record
class JsonValue:
    """A value of a document, and the ``position`` of the value in the document's ``outline``. If
    ``outline`` is None, the shape of the value is unknown."""

    node: Node
    outline: bytes | None = None
    position: int = 0

    def cursor(self) -> OutlineCursor:
        """Return a cursor at the value."""
        return OutlineCursor(self.outline, self.position)

    def shape(self) -> Shape | None:
        """Return the shape (see ``outline.read_shape``), or None if it is unknown."""
        return self.cursor().read()


class OutlineCursor:
    """Moves through the outline of a document, value by value. After the cursor has moved over a
    value without a shape, the shapes of all further values are unknown."""

    __slots__ = ("_outline", "_position", "_row", "_row_shapes")

    def __init__(self, outline: bytes | None, position: int) -> None:
        self._outline = outline
        self._position = position
        self._row = b""
        self._row_shapes: tuple[Shape, ...] = ()

    def move(self) -> None:
        """Move over a bracket, brace, comma or colon."""
        self._position += 1

    def read(self) -> Shape | None:
        """Move over a value, and return its shape, or None if it is unknown."""
        result = None if self._outline is None else read_shape(self._outline, self._position)
        if result is None:
            self._outline = None
            return None
        shape, self._position = result
        return shape

    def read_row(self, count: int) -> tuple[Shape, ...] | None:
        """Move over an object of ``count`` members, and return the shapes of the members, or None
        if any shape is unknown. Rows often have the same outline as the previous row, so their
        outlines are compared first."""
        outline, position, shapes = self._outline, self._position, self._row_shapes
        if outline is None:
            return None
        if len(shapes) == count and outline.startswith(self._row, position) and count:
            self._position += len(self._row)
            return shapes
        row_shapes = []
        self.move()  # skip the brace
        for _ in range(count):
            self.move()  # skip the colon
            row_shapes.append(self.read())
            self.move()  # skip the comma or the brace
        if not count:
            self.move()
        if self._outline is None:
            return None
        self._row = outline[position : self._position]
        self._row_shapes = tuple(shape for shape in row_shapes if shape is not None)
        return self._row_shapes

    def value(self, node: Node) -> JsonValue:
        """Return ``node`` with the current position."""
        return JsonValue(node, self._outline, self._position)


def parse_document(text: bytes, selected: Collection[str], limits: Limits) -> dict[str, JsonValue]:
    """Return the ``selected`` members of the object ``text``, in document order.
    Raises BAD_REQUEST, TOO_LARGE, and NeedsOffloadError on the event loop."""
    outline: bytes | None = None
    try:
        root: Node = simdjson.Parser().parse(text)
        outline = outline_of(text)
    except (ValueError, RuntimeError):
        check_loop_cost(limits, len(text), MAX_SLOW_BYTES_ON_LOOP)
        root = _parse_leniently(text, limits)
    return read_members(JsonValue(root, outline), "the body", selected)


def read_members(value: JsonValue, path: str, selected: Collection[str]) -> dict[str, JsonValue]:
    """Return the ``selected`` members of the object ``value``, in document order.
    Raises BAD_REQUEST, which names ``path``, and TOO_LARGE."""
    node = value.node
    names = member_names(node, path)
    # Only these names are looked up, because each look-up walks the object.
    nodes = node if isinstance(node, simdjson.Object) else dict(node)
    cursor = value.cursor()
    cursor.move()  # skip the brace
    members: dict[str, JsonValue] = {}
    # simdjson compares names only up to a NUL, so it would find the wrong member.
    present = {name for name in names if name in selected and "\0" not in name}
    for name in names:
        cursor.move()  # skip the colon
        if name in present:
            members[name] = cursor.value(nodes[name])
            if len(members) == len(present):
                break
        cursor.read()
        cursor.move()  # skip the comma
    return members


def _parse_leniently(text: bytes, limits: Limits) -> Node:
    check_nesting(text, limits)
    # Bytes that are not UTF-8 become unpaired surrogates (PEP 383).
    decoded = text.decode("utf-8-sig", "surrogateescape")
    if "Inf" in decoded:
        decoded = _INF.sub(
            lambda match: match[0].replace("Inf", "Infinity", match[0] == "Inf"), decoded
        )
    decoder = json.JSONDecoder(object_pairs_hook=ObjectMembers, parse_constant=LITERALS.__getitem__)
    try:
        root, _ = decoder.raw_decode(decoded, _WHITE_SPACE.match(decoded).end())  # type: ignore[union-attr]  # always matches
    except json.JSONDecodeError as error:
        reason = "The document is empty" if not text else error.msg
        raise bad_request(f"JSON Parse error: {reason}. at offset: {error.pos}") from None
    except ValueError as failure:  # the text has an integer of thousands of digits
        raise bad_request(f"JSON Parse error: {failure}") from None
    check_surrogates(root, decoded)  # an escaped surrogate would be mistaken for a byte
    return root


def is_object(node: Node) -> bool:
    """Return whether ``node`` is a JSON object. simdjson returns some objects as dicts."""
    return isinstance(node, simdjson.Object | ObjectMembers | dict)
