"""Header blocks: their fields, the rules of HTTP/2 for them (RFC 9113, 8.2 and 8.3), and their
encoding (RFC 7541)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.core.compilation import mypyc_attr
from infergate.transport.http2.hpack_decoder import FIELD_OVERHEAD

_NAME = re.compile(rb"[!-9;-@\[-~]+")  # visible ASCII except upper-case letters and the colon
VALUE: Final = re.compile(rb"[^\0\r\n]*")
"""Matches a valid field value. RFC 9113, 8.2.1 also forbids leading and trailing whitespace, but
gRPC peers send status messages and metadata exactly as the application set them. For example, some
of Triton's status messages end with a space."""
_BLANKS: Final = b" \t"
_CONNECTION_HEADERS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
FIXED_NAMES: Final = frozenset({b"te", b"content-type", b"content-length"})
"""Names whose values decide whether a block or a gRPC request is valid."""
_REQUEST_PSEUDO_HEADERS: Final = frozenset({":method", ":scheme", ":path", ":authority"})


@mypyc_attr(native_class=False)
class HeaderBlock:
    """The parsed fields of a header block. `pseudo` holds the pseudo-header fields by name, with
    the colon. `pairs` holds the other fields in order. `size` is counted as for
    SETTINGS_MAX_HEADER_LIST_SIZE.

    `is_malformed` means that HTTP/2 forbids the block in any message. `is_request` and
    `is_trailers` mean that the block may start a request (8.3.1) or end a body (8.1). `status` is
    the status of a response, or None for other blocks (8.3.2). `interpretation` is set by the code
    that uses the connection, and is cached with the block.

    If the block differs from the block `template` only in some values, `changed` holds these
    fields. Their names are unique in the block, and are neither pseudo-headers nor in
    `FIXED_NAMES`.
    """

    content_length: int | None
    is_malformed: bool
    is_request: bool
    is_trailers: bool
    pseudo: dict[str, str]
    status: int | None

    __slots__ = (
        "changed",
        "content_length",
        "interpretation",
        "is_malformed",
        "is_request",
        "is_trailers",
        "pairs",
        "pseudo",
        "size",
        "status",
        "template",
    )

    def __init__(
        self, raw: Iterable[tuple[bytes, bytes]], template: HeaderBlock | None = None
    ) -> None:
        """If `template` is given, it replaces `raw`, and the caller sets `changed`, `pairs` and
        `size`."""
        self.template = template
        self.interpretation: Any = None
        if template is not None:
            self.pseudo = template.pseudo
            self.is_malformed = template.is_malformed
            self.is_request, self.is_trailers = template.is_request, template.is_trailers
            self.content_length, self.status = template.content_length, template.status
            return
        self.changed: Sequence[tuple[str, str]] = ()
        self.pseudo = {}
        pairs: list[tuple[str, str]] = []
        self.size = 0
        self.is_malformed = False
        self.content_length = None
        for name, value in raw:
            self.size += len(name) + len(value) + FIELD_OVERHEAD
            if VALUE.fullmatch(value) is None:
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
        self.pairs: Sequence[tuple[str, str]] = tuple(pairs)
        pseudo = self.pseudo
        self.is_trailers = not self.is_malformed and not pseudo
        self.is_request = (
            not self.is_malformed
            and pseudo.keys() <= _REQUEST_PSEUDO_HEADERS
            and bool(pseudo.get(":path"))
            and ":method" in pseudo
            and ":scheme" in pseudo
        )
        status = pseudo.get(":status", "")
        is_response = (
            not self.is_malformed and len(pseudo) == 1 and len(status) == 3 and status.isdecimal()
        )
        self.status = int(status) if is_response else None

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


# ---- writing

_STATIC_NAMES: Final = {":authority": 1, "content-type": 31, "user-agent": 58}
_STATIC_FIELDS: Final = {
    (":method", "POST"): 3,
    (":scheme", "http"): 6,
    (":scheme", "https"): 7,
    (":status", "200"): 8,
}
TABLE_SIZE_ZERO: Final = b"\x20"
"""A table size update to 0 (RFC 7541, 6.3), which the gateway must send before its first field."""
_FOUR_BITS: Final = 15
_SEVEN_BITS: Final = 127


def encode_field(name: str, value: str) -> bytes:
    """Return a field, encoded as its index in the static table, or as a literal without indexing
    (RFC 7541, 6)."""
    if index := _STATIC_FIELDS.get((name, value)):
        return bytes((0x80 | index,))
    return encode_name(name) + encode_value(value)


def encode_name(name: str) -> bytes:
    """Return the encoding of a field name. The encoding of a value must follow it."""
    if index := _STATIC_NAMES.get(name):
        return _encode_integer(index, _FOUR_BITS)
    key = name.encode("ascii")
    return b"\0" + _encode_integer(len(key), _SEVEN_BITS) + key


def encode_value(value: str) -> bytes:
    """Return the encoding of a field value."""
    encoded = value.encode("latin-1")
    return _encode_integer(len(encoded), _SEVEN_BITS) + encoded


def encode_block(*pairs: tuple[str, str]) -> bytes:
    """Return the encoded header block with the fields `pairs`."""
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
