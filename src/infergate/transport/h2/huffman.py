"""Huffman's code of header fields (RFC 7541, 5.2 and appendix B), a byte at a time.

*Strategy.* ``hpack`` has the code as a table of what half a byte does in each of 256 states. What
two halves do is put together when it is first asked for, and kept: text needs a few hundred.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)

_MOST: Final = 8192
"""Steps that are kept; together under 2 MB."""


class _Step(NamedTuple):
    """What a byte does: the state after it, shifted by 8 bits; what it says; whether a text may end
    there."""

    state: int
    said: bytes
    may_end: bool


_steps: Final[dict[int, _Step]] = {}


def decode(text: bytes) -> bytes:
    """What ``text`` says. Raises HPACKDecodingError."""
    steps = _steps
    said = []
    state, may_end = 0, True
    for byte in text:
        state, part, may_end = steps.get(state | byte) or _learn(state | byte)
        said.append(part)
    if not may_end:
        raise HPACKDecodingError("a text in Huffman's code is cut short")
    return b"".join(said)


def _learn(at: int) -> _Step:
    """What the byte in the last 8 bits of ``at`` does in the state above them."""
    state, said, flags = at >> 8, bytearray(), 0
    for half in (at >> 4 & 15, at & 15):
        state, flags, symbol = HUFFMAN_TABLE[state << 4 | half]
        if flags & HUFFMAN_FAIL:
            raise HPACKDecodingError("a text is not in Huffman's code")
        if flags & HUFFMAN_EMIT_SYMBOL:
            said.append(symbol)
    if len(_steps) >= _MOST:
        _steps.clear()
    step = _steps[at] = _Step(state << 8, bytes(said), bool(flags & HUFFMAN_COMPLETE))
    return step
