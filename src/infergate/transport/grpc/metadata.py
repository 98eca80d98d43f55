"""Converts gRPC metadata to the canonical mapping of header names to text, and back. Binary values,
whose names end in ``-bin``, stay base64 without padding, so that forwarded metadata arrives
unchanged."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

BINARY_SUFFIX: Final = "-bin"
_RESERVED_PREFIXES: Final = ("grpc-", ":")
"""Prefixes of gRPC's own names, which applications can neither see nor set."""
_CONNECTION_NAMES: Final = frozenset(
    {"user-agent", "te", "content-type", "content-length", "connection", "host", "accept-encoding"}
)
"""Names that concern a single connection or the encoding, and are not forwarded."""
_HIDDEN_NAMES: Final = frozenset({"te", "content-type", "content-length"})
"""Names that grpcio hides from applications."""
_IP_SCHEMES: Final = frozenset({"ipv4", "ipv6"})
_NAME = re.compile("[0-9a-z_.-]+")
_VALUE = re.compile("[\x20-\x7e]*")
"""Values are printable ASCII (gRPC over HTTP/2, "Custom-Metadata")."""


def read(pairs: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Return a peer's metadata without gRPC's own names. Values of repeated names are joined with
    ``", "``."""
    metadata: dict[str, str] = {}
    for name, value in pairs:
        if name.startswith(_RESERVED_PREFIXES):
            continue
        text = value if isinstance(value, str) else _to_text(value)
        metadata[name] = f"{metadata[name]}, {text}" if name in metadata else text
    return metadata


def write(metadata: Mapping[str, str]) -> tuple[tuple[str, str | bytes], ...]:
    """Convert ``metadata`` to grpcio's format. Omit entries that are not forwarded, entries that
    gRPC would reject, and binary entries that are not base64."""
    pairs: list[tuple[str, str | bytes]] = []
    for name, text in metadata.items():
        if not _is_sendable(name):
            continue
        if not name.endswith(BINARY_SUFFIX):
            if _VALUE.fullmatch(text):
                pairs.append((name, text))
            continue
        try:
            # A comma separates repeated values, and never occurs in base64.
            pairs += [(name, _from_text(piece)) for piece in text.split(",")]
        except (binascii.Error, ValueError):
            continue
    return tuple(pairs)


def from_wire(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Convert ``pairs`` from the wire format, in which base64 may be padded."""
    return read(
        (name, binary_text(value) if name.endswith(BINARY_SUFFIX) else value)
        for name, value in pairs
        if name not in _HIDDEN_NAMES
    )


def binary_text(value: str) -> str:
    """Return the canonical text of a binary value in wire format."""
    return ", ".join(piece.strip().rstrip("=") for piece in value.split(","))


def to_wire(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Convert ``metadata`` to the wire format. Omit the same entries as ``write``."""
    return [
        (name, value.strip(" ") if isinstance(value, str) else _to_text(value))
        for name, value in write(metadata)
    ]


def parse_peer(peer: str) -> str:
    """Convert grpcio's name of a peer (``ipv4:127.0.0.1:1``, ``ipv6:%5B::1%5D:1``, ``unix:/path``)
    to ``host:port`` (with an IPv6 address in brackets) or to ``unix``."""
    scheme, _, rest = peer.partition(":")
    return unquote(rest) if scheme in _IP_SCHEMES else scheme


def is_text(name: str) -> bool:
    """Return whether metadata with this name is sent as plain text."""
    return _is_sendable(name) and not name.endswith(BINARY_SUFFIX)


def _is_sendable(name: str) -> bool:
    is_reserved = name in _CONNECTION_NAMES or name.startswith(_RESERVED_PREFIXES)
    return not is_reserved and _NAME.fullmatch(name) is not None


def _to_text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii").rstrip("=")


def _from_text(text: str) -> bytes:
    stripped = text.strip()
    return base64.b64decode(stripped + "=" * (-len(stripped) % 4), validate=True)
