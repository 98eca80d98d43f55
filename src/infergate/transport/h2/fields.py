"""Header blocks (RFC 7541) and what HTTP/2 allows in them (RFC 9113, 8.2 and 8.3).

*Strategy.* We announce a dynamic table of no bytes. A block that neither reads nor writes a table
means the same whenever it comes, so what it meant is remembered. Our own blocks use no table.

*Rule.* Whatever a block says is looked at only after all of it was decoded: the decoder's state
belongs to the connection, a mistake in it may belong to one stream.

Once a peer acknowledges our SETTINGS its table is empty: entries are gone, and an update to any
other size is an error (RFC 7541, 4.2). It should say so at the head of its next block. Some that
never use a table do not; as that changes no meaning, it is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

from infergate.transport.h2 import bounds
from infergate.transport.h2.blocks import PER_FIELD, Decoder

_NAME = re.compile(rb"[!-9;-@\[-~]+")
"""A field's name: visible ASCII, no upper case, no colon."""
_VALUE = re.compile(rb"[^\0\r\n]*")
"""A field's value. RFC 9113, 8.2.1 allows no blanks at its ends; gRPC's servers and clients send
messages and metadata with them as they were told (seen of Triton: "... got []. ")."""
_BLANKS: Final = b" \t"
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
REQUEST: Final = frozenset({":method", ":scheme", ":path", ":authority"})
RESPONSE: Final = frozenset({":status"})


class Fields:
    """What a header block says.

    ``pseudo`` by name, with the colon; ``pairs`` in order; ``size`` as
    SETTINGS_MAX_HEADER_LIST_SIZE counts. ``wrong``: HTTP/2 does not allow it anywhere. ``meaning``
    is for whoever has to know what it says: it is remembered with the block.
    """

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.pseudo: dict[str, str] = {}
        pairs: list[tuple[str, str]] = []
        self.size = 0
        self.wrong = False
        self.length: int | None = None
        self.meaning: Any = None
        for name, value in raw:
            self.size += len(name) + len(value) + PER_FIELD
            if _VALUE.fullmatch(value) is None:
                self.wrong = True
            elif name[:1] == b":":
                self._add_pseudo(name, value, late=bool(pairs))
            elif _NAME.fullmatch(name) is None or name in _OF_A_CONNECTION:
                self.wrong = True
            else:
                if name == b"te" and value != b"trailers":
                    self.wrong = True
                elif name == b"content-length":
                    self._announce(value)
                pairs.append((name.decode("ascii"), value.decode("latin-1")))
        self.pairs: Final = tuple(pairs)

    def _add_pseudo(self, name: bytes, value: bytes, *, late: bool) -> None:
        text = name.decode("latin-1")
        if late or text in self.pseudo or value.strip(_BLANKS) != value:
            self.wrong = True
        self.pseudo[text] = value.decode("latin-1")

    def _announce(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > 18 or self.length not in {None, int(value)}:
            self.wrong = True
        else:
            self.length = int(value)

    @cached_property
    def is_request(self) -> bool:
        """Whether it may begin one (RFC 9113, 8.3.1)."""
        pseudo = self.pseudo
        return (
            not self.wrong
            and pseudo.keys() <= REQUEST
            and bool(pseudo.get(":path"))
            and ":method" in pseudo
            and ":scheme" in pseudo
        )

    @cached_property
    def status(self) -> int | None:
        """Of a response; None where it is none (RFC 9113, 8.3.2)."""
        said = self.pseudo.get(":status", "")
        if self.wrong or len(self.pseudo) != 1 or len(said) != 3 or not said.isdecimal():
            return None
        return int(said)

    @property
    def is_trailers(self) -> bool:
        """Whether it may end a body (RFC 9113, 8.1)."""
        return not self.wrong and not self.pseudo


class BlockReader:
    """Decodes a connection's header blocks, of at most ``most`` bytes each when decoded."""

    __slots__ = ("_decoder", "_known", "_weight")

    def __init__(self, most: int) -> None:
        self._decoder: Final = Decoder(most)
        self._known: dict[bytes, Fields] = {}
        self._weight = 0

    def settle(self) -> None:
        """The peer acknowledged the SETTINGS by which it has no table. Known blocks are forgotten:
        one may give the table the size that it had."""
        self._decoder.settle()
        self._forget()

    def read(self, block: bytes) -> Fields:
        """What ``block`` says. Raises ConnectionFault where it cannot be decoded."""
        known = self._known.get(block)
        if known is not None:
            return known
        decoder = self._decoder
        fields = Fields(decoder.read(block))
        if decoder.is_stateless:
            self._remember(block, fields)
        elif decoder.is_resized:  # a known block may give the table the size that it had
            self._forget()
        return fields

    def _remember(self, block: bytes, fields: Fields) -> None:
        # By what it says: a byte may say a whole field. Or by its bytes: they may say nothing.
        weight = max(fields.size, len(block))
        if weight > bounds.LONGEST_REMEMBERED:
            return
        if (
            len(self._known) >= bounds.REMEMBERED_BLOCKS
            or self._weight + weight > bounds.REMEMBERED_BYTES
        ):
            self._forget()
        self._weight += weight
        self._known[block] = fields

    def _forget(self) -> None:
        self._known.clear()
        self._weight = 0


# ---- writing ------------------------------------------------------------------------------------

_STATIC_NAMES: Final = {":authority": 1, "content-type": 31, "user-agent": 58}
_STATIC_FIELDS: Final = {
    (":method", "POST"): 3,
    (":scheme", "http"): 6,
    (":scheme", "https"): 7,
    (":status", "200"): 8,
}
NO_TABLE: Final = b"\x20"
"""What our first block begins with: our table has, from now on, no bytes (RFC 7541, 6.3). A peer
that takes a smaller table than the usual one has to be told before anything else."""
_FOUR_BITS: Final = 15
_SEVEN_BITS: Final = 127


def field(name: str, value: str) -> bytes:
    """One field: by the static table where that has it, else a literal that enters no table (RFC
    7541, 6.1 and 6.2.2)."""
    if index := _STATIC_FIELDS.get((name, value)):
        return bytes((0x80 | index,))
    return begun(name) + text(value)


def begun(name: str) -> bytes:
    """A field up to its value."""
    if index := _STATIC_NAMES.get(name):
        return _integer(index, _FOUR_BITS)
    key = name.encode("ascii")
    return b"\0" + _integer(len(key), _SEVEN_BITS) + key


def text(value: str) -> bytes:
    """A field's value."""
    told = value.encode("latin-1")
    return _integer(len(told), _SEVEN_BITS) + told


def block(*pairs: tuple[str, str]) -> bytes:
    """A header block."""
    return b"".join(field(name, value) for name, value in pairs)


def _integer(value: int, most: int) -> bytes:
    """RFC 7541, 5.1, after a prefix of which all other bits are 0."""
    if value < most:
        return bytes((value,))
    written = bytearray((most,))
    value -= most
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
