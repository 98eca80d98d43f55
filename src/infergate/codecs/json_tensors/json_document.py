"""JSON documents whose objects, arrays and scalars are read lazily.

simdjson parses the bytes, and a value becomes a Python object only when it is read. ``json_data``
copies the numbers of an array without creating Python objects. If simdjson rejects a document, the
standard library parses the document, because some servers and clients send NaN and integers over 64
bits, and because the error messages of the standard library are better.

*Rule 1.* Each document has its own parser, because simdjson cannot reuse a parser while values of
the previous document exist, and an exception's traceback may hold such a value.

*Rule 2.* A duplicate name in an object is an error, because Triton uses the first member and Python
servers use the last member.

*Rule 3.* A document with more than :data:`MAX_DEPTH` nested levels or more than
:data:`MAX_CONTAINERS` arrays and objects is rejected before it is parsed, because arrays and
objects take far more time than other values of the same size.

*Rule 4.* A member that is null is treated as absent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import simdjson

from infergate.core.compilation import mypyc_attr
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits, check_loop_cost

Node = Any
"""A scalar, or an object or array from either parser."""

MAX_CONTAINERS_ON_LOOP: Final = 16384
"""Maximum number of arrays and objects that are read on the event loop. Reading an array or object
may take 1 µs."""
MAX_DEPTH: Final = 100
"""Maximum nesting depth, as in Triton."""
MAX_CONTAINERS: Final = 1 << 18
"""Maximum number of arrays and objects. Even an array of 3 bytes may take 1 µs."""
MAX_MEMBERS: Final = 1 << 16
"""Maximum number of members of an object. Their names become Python strings."""
MAX_VALUES: Final = 1 << 16
"""Maximum number of values of an object that is converted to plain Python values."""
MAX_SLOW_BYTES_ON_LOOP: Final = 32 * KIB
"""Maximum number of bytes that the standard library parses on the event loop. Parsing takes 0.1 ms
per KiB."""
MAX_MEMBERS_LOOKED_UP: Final = 1024
"""Maximum number of members of an object if all members are looked up, because each look-up walks
the object."""
MAX_TEXT_CHARACTERS: Final = 4 * MIB
"""Maximum number of characters of a message's id, and of the strings in its parameters together.
The limit is the same as in V2 gRPC. The event loop unpickles these strings."""
_BRACKETS: Final = b"[]{}"
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(_BRACKETS + b'"'))
_NOT_COMMAS: Final = bytes(set(range(256)) - set(b',"'))
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""Matches a string or, to avoid quadratic time, the rest of an unterminated string."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches the escape sequence of a surrogate."""
_BLOCK_BRACKETS: Final = 64 * 1024
"""Number of brackets per block. numpy needs about 20 bytes per bracket."""


@mypyc_attr(native_class=False)
class ObjectMembers(list[tuple[str, Any]]):
    """The members of an object that the standard library parsed. They may include duplicates."""


@mypyc_attr(native_class=False)
class NonFiniteLiteral(str):
    """NaN, Infinity or -Infinity as an unquoted word. The type distinguishes such a word from
    overlong numbers and from strings."""

    __slots__ = ()


LITERALS: Final = {word: NonFiniteLiteral(word) for word in ("NaN", "Infinity", "-Infinity")}


def parse_json(text: bytes, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse a client's document. Raises BAD_REQUEST, TOO_LARGE, and NeedsOffloadError on the event
    loop."""
    check_nesting(text, limits)
    try:
        return simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        check_loop_cost(limits, len(text), MAX_SLOW_BYTES_ON_LOOP)
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_request(f"the JSON is not UTF-8 at byte {error.start}") from None
    document = parse_with_stdlib(decoded)
    check_surrogates(document, decoded)
    return document


def check_surrogates(document: Node, text: str) -> None:
    """Raise BAD_REQUEST if a string in ``document`` has an unpaired surrogate. ``text`` is the JSON
    of ``document``."""
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request("the JSON has an unpaired surrogate in a string") from None


def parse_backend_json(text: bytes, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse a server's document. Raises BAD_REQUEST, TOO_LARGE, and NeedsOffloadError on the event
    loop.

    Triton writes BYTES that are not UTF-8 unchanged into JSON strings. Such bytes become unpaired
    surrogates (PEP 383), which ``json_data`` converts back.
    """
    check_loop_cost(limits, len(text), limits.json_inline)
    check_nesting(text, limits)
    try:
        return simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        check_loop_cost(limits, len(text), MAX_SLOW_BYTES_ON_LOOP)
        return parse_with_stdlib(text.decode("utf-8-sig", "surrogateescape"))


def parse_with_stdlib(text: str | bytes) -> Node:
    """Parse a document with the standard library. Raises BAD_REQUEST."""
    try:
        return json.loads(
            text, object_pairs_hook=ObjectMembers, parse_constant=LITERALS.__getitem__
        )
    except json.JSONDecodeError as error:
        raise bad_request(f"invalid JSON at character {error.pos}: {error.msg}") from None
    except ValueError as failure:  # the text has an integer of thousands of digits
        raise bad_request(f"invalid JSON: {failure}") from None


def check_nesting(text: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Apply Rule 3. Raises BAD_REQUEST, TOO_LARGE, and NeedsOffloadError on the event loop."""
    if _is_shallow(text, b"[") and _is_shallow(text, b"{"):
        return
    if b"\\" in text:
        text = STRING.sub(b"", text)
    # Adjacent quotes do not change whether a bracket is inside a string.
    structure = text.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    outside = b"".join(structure.split(b'"')[::2])
    if len(outside) > 2 * MAX_CONTAINERS:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the JSON holds over {MAX_CONTAINERS} arrays and objects; send data as flat arrays",
        )
    check_loop_cost(limits, len(outside), 2 * MAX_CONTAINERS_ON_LOOP)
    level = 0
    for start in range(0, len(outside), _BLOCK_BRACKETS):
        block = np.frombuffer(outside, np.uint8, min(_BLOCK_BRACKETS, len(outside) - start), start)
        # Only opening brackets have bit 0x02.
        levels = ((block & 2).astype(np.int64) - 1).cumsum() + level
        if int(levels.max()) > MAX_DEPTH:
            raise bad_request(f"the JSON is nested over {MAX_DEPTH} levels deep")
        level = int(levels[-1])


def _is_shallow(text: bytes, bracket: bytes) -> bool:
    """Return whether ``bracket`` occurs at most ``MAX_DEPTH // 2`` times. ``find`` makes this check
    fast."""
    position = -1
    for _ in range(MAX_DEPTH // 2 + 1):
        position = text.find(bracket, position + 1)
        if position < 0:
            return True
    return False


def check_json_size(size: int, max_size: int) -> None:
    """Raise TOO_LARGE if ``size`` bytes of JSON exceed ``max_size``."""
    if size > max_size:
        raise GatewayError(
            Kind.TOO_LARGE, f"{size} bytes of JSON exceed the limit of {max_size}", limit="json"
        )


def read_members(node: Node, path: str, names: Iterable[str]) -> dict[str, Node]:
    """Return the members as :func:`read_nullable_members` does, but without null members."""
    return drop_nulls(read_nullable_members(node, path, names))


def drop_nulls(members: Mapping[str, Node]) -> dict[str, Node]:
    """Return ``members`` without the members that are null (Rule 4)."""
    return {name: value for name, value in members.items() if value is not None}


def read_nullable_members(node: Node, path: str, selected: Iterable[str]) -> dict[str, Node]:
    """Return the members of the object ``node`` whose names are in ``selected``. Values may be
    None. Raises BAD_REQUEST, which names ``path``, if ``node`` is not an object or has duplicate
    names, and TOO_LARGE."""
    names = set(member_names(node, path))
    # Only these names are looked up, because each look-up walks the object.
    members = node if isinstance(node, simdjson.Object) else dict(node)
    return {name: members[name] for name in selected if name in names}


def member_names(node: Node, path: str) -> list[str]:
    """Return the names of the members of the object ``node``, in their order. Raises like
    :func:`read_nullable_members`."""
    if isinstance(node, simdjson.Object):
        _check_size(len(node), path, MAX_MEMBERS, "members")
        names = list(node.keys())
    elif isinstance(node, ObjectMembers):
        names = [name for name, _ in node]
    else:
        raise bad_request(f"{path} must be an object, not {json_kind(node)}")
    _check_unique(names, path)
    return names


def read_all_members(node: Node, path: str) -> dict[str, Node]:
    """Return the members of the object ``node``, except members that are null. Raises like
    :func:`read_nullable_members`, and TOO_LARGE for more than :data:`MAX_MEMBERS_LOOKED_UP`
    members."""
    if isinstance(node, simdjson.Object | ObjectMembers):
        _check_size(len(node), path, MAX_MEMBERS_LOOKED_UP, "members")
    return read_members(node, path, member_names(node, path))


def _check_size(size: int, path: str, max_size: int, unit: str) -> None:
    if size > max_size:
        raise GatewayError(Kind.TOO_LARGE, f"{path} has over {max_size} {unit} (the limit)")


def _check_unique(names: list[str], path: str) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise bad_request(f"{path} has '{abbreviated(name)}' twice")
        seen.add(name)


def read_items(node: Node, path: str, max_items: int, limit_name: str = "tensors") -> list[Node]:
    """Return the items of the array ``node``. Raises BAD_REQUEST if it is not an array or has too
    many items."""
    if not is_array(node):
        raise bad_request(f"{path} must be an array, not {json_kind(node)}")
    if len(node) > max_items:
        raise bad_request(
            f"{path} has {len(node)} items; the limit is {max_items}", limit=limit_name
        )
    return list(node)


def read_string(node: Node, path: str) -> str:
    """Return the string ``node``. Raises BAD_REQUEST."""
    if type(node) is not str:
        raise bad_request(f"{path} must be a string, not {json_kind(node)}")
    if not node.isascii():
        _check_encodable(node, path)
    return node


def check_text_length(characters: int, path: str) -> None:
    """Raise TOO_LARGE for more than ``MAX_TEXT_CHARACTERS`` characters outside tensor data."""
    _check_size(characters, path, MAX_TEXT_CHARACTERS, "characters of text")


def _check_encodable(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{path} is not valid Unicode") from None


def read_plain_object(node: Node, path: str) -> dict[str, Any]:
    """Return the object ``node`` as plain Python values. Raises BAD_REQUEST, and TOO_LARGE for a
    simdjson object with more than ``MAX_VALUES`` values."""
    if isinstance(node, simdjson.Object):
        text: bytes = node.mini  # type: ignore[assignment]  # the stubs say str
        if text.count(b",") >= MAX_VALUES:
            _check_size(_count_commas(text) + 1, path, MAX_VALUES, "values")
        if text.count(b"{") == 1:
            _check_unique(list(node.keys()), path)
            return node.as_dict()
        try:
            values: dict[str, Any] = json.loads(text, object_pairs_hook=_reject_duplicates)
        except _DuplicateMemberError:
            return _plain_members(parse_with_stdlib(text), path)  # raises BAD_REQUEST
        return values
    if isinstance(node, ObjectMembers):
        plain = _plain_members(node, path)
        _check_encodable(json.dumps(plain, ensure_ascii=False), path)
        return plain
    raise bad_request(f"{path} must be an object, not {json_kind(node)}")


def _count_commas(text: bytes) -> int:
    """Count the commas outside strings in the valid JSON ``text``, without creating the strings."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(None, _NOT_COMMAS), np.uint8)
    inside = np.bitwise_xor.accumulate((marks == ord('"')).view(np.uint8))
    return int(np.count_nonzero((marks == ord(",")) & (inside == 0)))


class _DuplicateMemberError(Exception):
    """An object has a duplicate name."""


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _DuplicateMemberError
    return members


_ALWAYS_FINITE: Final = frozenset({str, int, bool, type(None)})


def _plain_members(node: ObjectMembers, path: str) -> dict[str, Any]:
    _check_unique([name for name, _ in node], path)
    return {
        name: value
        if type(value) in _ALWAYS_FINITE
        else _plain_value(value, f"{path}.{abbreviated(name)}")
        for name, value in node
    }


def _plain_value(node: Node, path: str) -> Any:
    if isinstance(node, ObjectMembers):
        return _plain_members(node, path)
    if isinstance(node, list):
        return [item if type(item) in _ALWAYS_FINITE else _plain_value(item, path) for item in node]
    if isinstance(node, NonFiniteLiteral) or (isinstance(node, float) and math.isinf(node)):
        raise bad_request(f"{path} must be a finite number")
    return node


def is_array(node: Node) -> bool:
    """Return whether ``node`` is a JSON array."""
    return isinstance(node, simdjson.Array) or type(node) is list


def json_kind(node: Node) -> str:
    """Return the JSON type of ``node``, for error messages."""
    match node:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | NonFiniteLiteral():
            return "a number"
        case str():
            return "a string"
        case _ if is_array(node):
            return "an array"
        case _:
            return "an object"


def abbreviated(value: object) -> str:
    """Return ``value`` as text that is short enough for an error message."""
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
