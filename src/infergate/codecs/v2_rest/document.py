"""JSON documents read by name: objects, arrays and scalars, lazily.

*Strategy.* simdjson parses the bytes and gives proxies: nothing becomes a Python object before it
is asked for, and an array of numbers never does. What simdjson refuses although servers and
clients say it (NaN, integers over 64 bits) is read again by the standard library; so is
everything wrong, for its error message. Both kinds of node are read by the same functions here.

*Rule 1.* One parser a document, dropped with it: simdjson refuses to use a parser again while
proxies of it live, and an exception's traceback may hold one.
*Rule 2.* A name twice in an object that is read is an error: Triton takes the first, Python
servers the last, so one request could mean two things.
*Rule 3.* Nesting is counted before parsing, at most :data:`DEEPEST` levels, and so are arrays and
objects, at most :data:`MOST_NESTED`: all that costs much more than its bytes are these.
*Rule 4.* null stands for absent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import simdjson

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits, check_loop

Node = Any
"""A scalar, or an object or array of either parser."""

NESTED_ON_LOOP: Final = 16384
"""Arrays and objects in a document that the event loop reads: each may take it 1 µs."""
DEEPEST: Final = 100
"""Levels of nesting (Triton: 100)."""
MOST_NESTED: Final = 1 << 18
"""Arrays and objects in one document. Each that becomes a Python object costs up to 1 µs, though
its text may have 3 bytes. Triton has no such bound."""
MAX_NAMES: Final = 1 << 16
"""Members of any one object that is read: their names become Python strings."""
MAX_VALUES: Final = 1 << 16
"""Values of one object that becomes a Python object as a whole."""
SLOW_ON_LOOP: Final = 32 * KIB
"""Text that the standard library reads on the event loop, over 0.1 ms a KiB."""
MOST_MEMBERS: Final = 1024
"""Of an object whose members are all looked up: each look-up walks the object."""
MOST_TEXT: Final = 4 * MIB
"""Characters of a message's id, and of all texts in its parameters; V2 gRPC lets names, shapes and
parameters have as many. A helper gives them back pickled, and the event loop reads that."""
_BRACKETS: Final = b"[]{}"
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(_BRACKETS + b'"'))
_NOT_COMMAS: Final = bytes(set(range(256)) - set(b',"'))
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""A string, or what is left of the text where one does not end. It matches at every quote: one
that failed would be tried again at the next, each time to the end of the text."""
_SURROGATE: Final = re.compile(r"\\u[dD]")
_BLOCK: Final = 64 * 1024
"""Brackets looked at together: numpy needs some 20 bytes for each."""


class Members(list[tuple[str, Any]]):
    """An object's members as the standard library met them, repeated names included."""


class Literal(str):
    """NaN, Infinity or -Infinity as a bare word. Distinct from the float that an overlong number
    becomes, and from the string."""

    __slots__ = ()


_LITERALS: Final = {word: Literal(word) for word in ("NaN", "Infinity", "-Infinity")}


def read(text: bytes, limits: Limits = DEFAULT_LIMITS) -> Node:
    """The document in ``text``. Raises BAD_REQUEST with the place of the mistake, and CostlyError
    on the event loop."""
    check_nesting(text, limits)
    try:
        return simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        check_loop(limits, len(text), SLOW_ON_LOOP)
        return _read_again(text)


def _read_again(text: bytes) -> Node:
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_request(f"the JSON is not UTF-8 at byte {error.start}") from None
    document = load(decoded)
    if _SURROGATE.search(decoded):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request("the JSON holds half a surrogate pair in a string") from None
    return document


def read_tolerantly(text: bytes, limits: Limits = DEFAULT_LIMITS) -> Node:
    """The document in a server's answer. Triton writes BYTES that are not UTF-8 as they are into
    JSON strings: such bytes become lone surrogates (PEP 383), which ``elements`` turns back.
    Raises CostlyError on the event loop."""
    check_loop(limits, len(text), limits.json_inline)
    check_nesting(text, limits)
    try:
        return simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        check_loop(limits, len(text), SLOW_ON_LOOP)
        return load(text.decode("utf-8-sig", "surrogateescape"))


def load(text: str | bytes) -> Node:
    """The document in ``text`` by the standard library. Raises BAD_REQUEST."""
    try:
        return json.loads(text, object_pairs_hook=Members, parse_constant=_LITERALS.__getitem__)
    except json.JSONDecodeError as error:
        raise bad_request(f"the JSON is wrong at character {error.pos}: {error.msg}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise bad_request(f"the JSON is wrong: {error}") from None


def check_nesting(text: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Rule 3. Raises BAD_REQUEST, TOO_LARGE, and CostlyError on the event loop. Documents
    with few brackets in all pay two quick scans."""
    if _has_few(text, b"[") and _has_few(text, b"{"):
        return
    if b"\\" in text:
        text = _STRING.sub(b"", text)
    # two quotes side by side, of one string or of two, change nothing about what lies outside
    structure = text.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    outside = b"".join(structure.split(b'"')[::2])
    if len(outside) > 2 * MOST_NESTED:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the JSON holds over {MOST_NESTED} arrays and objects; data may be sent flat",
        )
    check_loop(limits, len(outside), 2 * NESTED_ON_LOOP)
    level = 0
    for start in range(0, len(outside), _BLOCK):
        block = np.frombuffer(outside, np.uint8, min(_BLOCK, len(outside) - start), start)
        # opening brackets, and no closing ones, have bit 0x02
        levels = ((block & 2).astype(np.int64) - 1).cumsum() + level
        if int(levels.max()) > DEEPEST:
            raise bad_request(f"the JSON is nested over {DEEPEST} levels deep")
        level = int(levels[-1])


def _has_few(text: bytes, bracket: bytes) -> bool:
    """Whether ``bracket`` alone cannot take half of the levels that are allowed. ``find`` runs at
    the speed of memory, ``count`` does not."""
    place = -1
    for _ in range(DEEPEST // 2 + 1):
        place = text.find(bracket, place + 1)
        if place < 0:
            return True
    return False


def members(node: Node, path: str, known: Iterable[str]) -> dict[str, Node]:
    """Those members of the object ``node`` that are ``known`` and not null (Rule 4)."""
    return present(named(node, path, known))


def present(told: Mapping[str, Node]) -> dict[str, Node]:
    """Rule 4."""
    return {name: value for name, value in told.items() if value is not None}


def named(node: Node, path: str, known: Iterable[str]) -> dict[str, Node]:
    """Those members of the object ``node`` that are ``known``, null included.

    ``path`` names the node in errors. Raises BAD_REQUEST where it is no object, or where a name
    comes twice, known or not.
    """
    if isinstance(node, simdjson.Object):
        _check_size(len(node), path, MAX_NAMES, "members")
        names = _checked_names(list(node.keys()), path)
        # only known names are looked up: a look-up walks the object
        return {name: node[name] for name in known if name in names}
    if isinstance(node, Members):
        _checked_names([name for name, _ in node], path)
        found = dict(node)
        return {name: found[name] for name in known if name in found}
    raise bad_request(f"{path} must be an object, not {kind(node)}")


def every(node: Node, path: str) -> dict[str, Node]:
    """All members of the object ``node``, at most :data:`MOST_MEMBERS`, null left out (Rule 4).
    Raises like :func:`named`, and TOO_LARGE."""
    if not isinstance(node, simdjson.Object | Members):
        raise bad_request(f"{path} must be an object, not {kind(node)}")
    _check_size(len(node), path, MOST_MEMBERS, "members")
    if isinstance(node, simdjson.Object):
        return members(node, path, list(node.keys()))
    return members(node, path, [name for name, _ in node])


def _check_size(size: int, path: str, most: int, what: str) -> None:
    if size > most:
        raise GatewayError(Kind.TOO_LARGE, f"{path} has over {most} {what}, the limit")


def _checked_names(names: list[str], path: str) -> set[str]:
    once = set(names)
    if len(once) != len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise bad_request(f"{path} has '{shown(name)}' twice")
            seen.add(name)
    return once


def items(node: Node, path: str, most: int, limit: str = "tensors") -> list[Node]:
    """The items of the array ``node``, at most ``most``, as ``limit`` says. Raises BAD_REQUEST."""
    if not is_array(node):
        raise bad_request(f"{path} must be an array, not {kind(node)}")
    if len(node) > most:
        raise bad_request(f"{path} has {len(node)} items, the limit is {most}", limit=limit)
    return list(node)


def string(node: Node, path: str) -> str:
    """The string ``node``. Raises BAD_REQUEST."""
    if type(node) is not str:
        raise bad_request(f"{path} must be a string, not {kind(node)}")
    if not node.isascii():
        _check_text(node, path)
    return node


def check_length(characters: int, path: str) -> None:
    """Raise TOO_LARGE where texts that are no tensor data have more than ``MOST_TEXT``."""
    _check_size(characters, path, MOST_TEXT, "characters of text")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{path} is not valid text") from None


def parameters(node: Node, path: str) -> dict[str, Any]:
    """The object ``node`` as plain Python values. Raises BAD_REQUEST, and TOO_LARGE before over
    ``MAX_VALUES`` of them are made."""
    if isinstance(node, simdjson.Object):
        text: bytes = node.mini  # type: ignore[assignment]  # the stubs say str
        if text.count(b",") >= MAX_VALUES:
            _check_size(_commas(text) + 1, path, MAX_VALUES, "values")
        if text.count(b"{") == 1:
            _checked_names(list(node.keys()), path)
            return node.as_dict()
        try:
            held: dict[str, Any] = json.loads(text, object_pairs_hook=_without_twins)
        except _TwinsError:
            return _plain_members(load(text), path)  # raises, naming the object
        return held
    if isinstance(node, Members):
        found = _plain_members(node, path)
        _check_text(json.dumps(found, ensure_ascii=False), path)
        return found
    raise bad_request(f"{path} must be an object, not {kind(node)}")


def _commas(text: bytes) -> int:
    """How many commas of the valid JSON ``text`` are in no string. Takes a few times its memory:
    a regular expression would make an object for each string."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(None, _NOT_COMMAS), np.uint8)
    inside = np.bitwise_xor.accumulate((marks == ord('"')).view(np.uint8))
    return int(np.count_nonzero((marks == ord(",")) & (inside == 0)))


class _TwinsError(Exception):
    """Somewhere inside, an object has a name twice."""


def _without_twins(told: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(told)
    if len(held) < len(told):
        raise _TwinsError
    return held


_SURE: Final = frozenset({str, int, bool, type(None)})
"""Types of values that need no second look: a float may be infinite."""


def _plain_members(node: Members, path: str) -> dict[str, Any]:
    _checked_names([name for name, _ in node], path)
    return {
        name: value if type(value) in _SURE else _plain(value, f"{path}.{shown(name)}")
        for name, value in node
    }


def _plain(node: Node, path: str) -> Any:
    if isinstance(node, Members):
        return _plain_members(node, path)
    if isinstance(node, list):
        return [item if type(item) in _SURE else _plain(item, path) for item in node]
    if isinstance(node, Literal) or (isinstance(node, float) and math.isinf(node)):
        raise bad_request(f"{path} is no number that JSON has")
    return node


def is_array(node: Node) -> bool:
    """Whether ``node`` is a JSON array."""
    return isinstance(node, simdjson.Array) or type(node) is list


def kind(node: Node) -> str:
    """What ``node`` is, in JSON's words, for errors."""
    match node:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | Literal():
            return "a number"
        case str():
            return "a string"
        case _ if is_array(node):
            return "an array"
        case _:
            return "an object"


def shown(value: object) -> str:
    """``value`` short enough for an error message."""
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
