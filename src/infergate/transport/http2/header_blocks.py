"""Header blocks (RFC 7541) and the rules of HTTP/2 for them (RFC 9113, 8.2 and 8.3).

The gateway announces a dynamic table of size 0. A block that neither reads nor writes a table
always has the same meaning, so its parsed form is cached. A decoding error ends the connection; an
invalid field concerns one stream, so a block is validated after it was decoded completely.

Once a peer acknowledges the SETTINGS, its table is empty and an update to any other size is an
error (RFC 7541, 4.2). The required update to size 0 may be missing: some peers that never use a
table omit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

from infergate.core.bounded_cache import WeightedCache
from infergate.transport.http2 import limits
from infergate.transport.http2.hpack_decoder import FIELD_OVERHEAD, HpackDecoder

_NAME = re.compile(rb"[!-9;-@\[-~]+")  # visible ASCII without upper case and colon
_VALUE = re.compile(rb"[^\0\r\n]*")
"""A field value. RFC 9113, 8.2.1 forbids blanks at its ends, but gRPC peers send messages and
metadata as set by the application (Triton: "... got []. ")."""
_BLANKS: Final = b" \t"
_CONNECTION_HEADERS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
REQUEST: Final = frozenset({":method", ":scheme", ":path", ":authority"})
RESPONSE: Final = frozenset({":status"})


class HeaderBlock:
    """The parsed fields of a header block. `pseudo` holds the pseudo-header fields by name, with
    the colon; `pairs` the others in order; `size` counts as SETTINGS_MAX_HEADER_LIST_SIZE does.
    `is_malformed`: HTTP/2 forbids the block in any message. `interpretation` belongs to the
    user of the connection, and is cached with the block."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.pseudo: dict[str, str] = {}
        pairs: list[tuple[str, str]] = []
        self.size = 0
        self.is_malformed = False
        self.content_length: int | None = None
        self.interpretation: Any = None
        for name, value in raw:
            self.size += len(name) + len(value) + FIELD_OVERHEAD
            if _VALUE.fullmatch(value) is None:
                self.is_malformed = True
            elif name[:1] == b":":
                self._add_pseudo(name, value, after_regular=bool(pairs))
            elif _NAME.fullmatch(name) is None or name in _CONNECTION_HEADERS:
                self.is_malformed = True
            else:
                if name == b"te" and value != b"trailers":
                    self.is_malformed = True
                elif name == b"content-length":
                    self._set_content_length(value)
                pairs.append((name.decode("ascii"), value.decode("latin-1")))
        self.pairs: Final = tuple(pairs)

    def _add_pseudo(self, name: bytes, value: bytes, *, after_regular: bool) -> None:
        text = name.decode("latin-1")
        if after_regular or text in self.pseudo or value.strip(_BLANKS) != value:
            self.is_malformed = True
        self.pseudo[text] = value.decode("latin-1")

    def _set_content_length(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > 18 or self.content_length not in {None, int(value)}:
            self.is_malformed = True
        else:
            self.content_length = int(value)

    @cached_property
    def is_request(self) -> bool:
        """Whether the block may start a request (RFC 9113, 8.3.1)."""
        pseudo = self.pseudo
        return (
            not self.is_malformed
            and pseudo.keys() <= REQUEST
            and bool(pseudo.get(":path"))
            and ":method" in pseudo
            and ":scheme" in pseudo
        )

    @cached_property
    def status(self) -> int | None:
        """The status of a response, or None if this is not a valid response (RFC 9113, 8.3.2)."""
        status = self.pseudo.get(":status", "")
        if self.is_malformed or len(self.pseudo) != 1 or len(status) != 3 or not status.isdecimal():
            return None
        return int(status)

    @property
    def is_trailers(self) -> bool:
        """Whether the block may end a body (RFC 9113, 8.1)."""
        return not self.is_malformed and not self.pseudo


class HeaderBlockDecoder:
    """Decodes the header blocks of a connection, each of at most `max_size` bytes when decoded."""

    __slots__ = ("_cache", "_decoder")

    def __init__(self, max_size: int) -> None:
        self._decoder: Final = HpackDecoder(max_size)
        self._cache: Final = WeightedCache[bytes, HeaderBlock](
            limits.MAX_CACHED_BLOCKS, limits.MAX_CACHE_BYTES
        )

    def disable_table(self) -> None:
        """Drop the peer's dynamic table, because it acknowledged the SETTINGS. The cache is
        cleared, because a cached block may set the table to a size that is now an error."""
        self._decoder.disable_table()
        self._cache.clear()

    def decode(self, block: bytes) -> HeaderBlock:
        """Return the fields of `block`. Raises Http2ConnectionError if it cannot be decoded."""
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        decoder = self._decoder
        fields = HeaderBlock(decoder.decode(block))
        if decoder.is_stateless:
            # One byte can encode a whole field, and many bytes can encode none.
            weight = max(fields.size, len(block))
            if weight <= limits.MAX_CACHED_BLOCK_BYTES:
                self._cache.add(block, fields, weight)
        elif decoder.is_resized:  # a cached block may set the table back to its previous size
            self._cache.clear()
        return fields


# ---- writing

_STATIC_NAMES: Final = {":authority": 1, "content-type": 31, "user-agent": 58}
_STATIC_FIELDS: Final = {
    (":method", "POST"): 3,
    (":scheme", "http"): 6,
    (":scheme", "https"): 7,
    (":status", "200"): 8,
}
TABLE_SIZE_ZERO: Final = b"\x20"
"""A table size update to 0 (RFC 7541, 6.3), which must precede the first field of this end."""
_FOUR_BITS: Final = 15
_SEVEN_BITS: Final = 127


def encode_field(name: str, value: str) -> bytes:
    """Return one field as its index in the static table or as a literal without indexing (RFC
    7541, 6)."""
    if index := _STATIC_FIELDS.get((name, value)):
        return bytes((0x80 | index,))
    return encode_name(name) + encode_value(value)


def encode_name(name: str) -> bytes:
    """Return the encoding of a field name, to be followed by a value."""
    if index := _STATIC_NAMES.get(name):
        return _encode_integer(index, _FOUR_BITS)
    key = name.encode("ascii")
    return b"\0" + _encode_integer(len(key), _SEVEN_BITS) + key


def encode_value(value: str) -> bytes:
    """Return the encoding of a field value."""
    encoded = value.encode("latin-1")
    return _encode_integer(len(encoded), _SEVEN_BITS) + encoded


def encode_block(*pairs: tuple[str, str]) -> bytes:
    """Return a header block."""
    return b"".join(encode_field(name, value) for name, value in pairs)


def _encode_integer(value: int, prefix_max: int) -> bytes:
    """Encode an integer (RFC 7541, 5.1)."""
    if value < prefix_max:
        return bytes((value,))
    encoded = bytearray((prefix_max,))
    value -= prefix_max
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
