"""Decodes the Huffman code of header fields (RFC 7541, 5.2 and appendix B) byte by byte. The
library `hpack` has a table of state transitions for half a byte. This module computes the
transition for a whole byte on first use, and caches it."""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

from infergate.core.bounded_cache import BoundedCache

_MAX_STEPS: Final = 8192  # maximum number of cached transitions, which take less than 2 MB


class _Step(NamedTuple):
    """The effect of one byte; `state` is shifted left by 8 bits."""

    state: int
    decoded: bytes
    is_accepting: bool


_steps = BoundedCache[int, _Step](_MAX_STEPS)


def decode(text: bytes) -> bytes:
    """Decode `text`. Raises HPACKDecodingError."""
    steps = _steps
    decoded = []
    state, may_end = 0, True
    for byte in text:
        state, output, may_end = steps.get(state | byte) or _compute_step(state | byte)
        decoded.append(output)
    if not may_end:
        raise HPACKDecodingError("truncated Huffman string")
    return b"".join(decoded)


def _compute_step(state_and_byte: int) -> _Step:
    """Compute and cache the effect of a byte. `state_and_byte` has the byte in its low 8 bits, and
    the state above them."""
    state, decoded, flags = state_and_byte >> 8, bytearray(), 0
    for nibble in (state_and_byte >> 4 & 15, state_and_byte & 15):
        state, flags, symbol = HUFFMAN_TABLE[state << 4 | nibble]
        if flags & HUFFMAN_FAIL:
            raise HPACKDecodingError("invalid Huffman code")
        if flags & HUFFMAN_EMIT_SYMBOL:
            decoded.append(symbol)
    step = _steps[state_and_byte] = _Step(
        state << 8, bytes(decoded), bool(flags & HUFFMAN_COMPLETE)
    )
    return step
