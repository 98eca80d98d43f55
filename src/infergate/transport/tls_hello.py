"""Reads the application protocols (ALPN) that a TLS client offers, before OpenSSL does.

With Python's settings OpenSSL continues without a protocol if none is shared; RFC 7301, 3.2
demands a fatal alert. Sources: RFC 8446, 4.1.2 and 5.1; RFC 7301, 3.1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\0\2\2\x78"
"""The alert as a record, in plain text because the server has sent nothing yet."""
_LONGEST: Final = 64 * 1024
"""Maximum size of a ClientHello that is examined; longer ones are left to OpenSSL."""
_HANDSHAKE, _CLIENT_HELLO, _ALPN = 0x16, 1, 16
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSION_AND_RANDOM: Final = 34


class Offer:
    """Collects a client's first bytes until its ALPN offer is known."""

    __slots__ = ("_begun", "_hello", "_protocols")

    def __init__(self, protocols: Collection[str]) -> None:
        """``protocols`` are those supported by the listener."""
        self._protocols: Final = {name.encode("ascii") for name in protocols}
        self._begun: bytearray | None = bytearray() if protocols else None
        self._hello = bytearray()

    def excludes(self, data: memoryview) -> bool:
        """Whether the client offers protocols but none that is supported; ``data`` is the next
        received part."""
        if self._begun is None:
            return False
        self._begun += data
        try:
            if not self._is_complete(self._begun):
                return False
            offered = _offered(bytes(self._hello[_MESSAGE_HEAD:]))
        except (IndexError, ValueError):  # malformed or too long: OpenSSL reports it
            offered = None
        self._begun = None
        return offered is not None and not self._protocols & offered

    def _is_complete(self, begun: bytearray) -> bool:
        """Move whole records from ``begun``; return whether the ClientHello is complete.

        Raises ValueError if it is not a ClientHello.
        """
        hello = self._hello
        while len(begun) >= _RECORD_HEAD:
            if begun[0] != _HANDSHAKE:
                raise ValueError("not a handshake record")
            end = _RECORD_HEAD + int.from_bytes(begun[3:_RECORD_HEAD])
            if len(begun) < end:
                return False
            hello += begun[_RECORD_HEAD:end]
            del begun[:end]
            if len(hello) > _LONGEST or (hello and hello[0] != _CLIENT_HELLO):
                raise ValueError("not a ClientHello")
            if len(hello) >= _MESSAGE_HEAD + int.from_bytes(hello[1:_MESSAGE_HEAD]):
                return len(hello) >= _MESSAGE_HEAD
        return False


def _offered(hello: bytes) -> set[bytes] | None:
    """Return the protocols in the ALPN extension, or None without one. Raises IndexError,
    ValueError."""
    at = _VERSION_AND_RANDOM
    for size in (1, 2, 1):  # session ID, cipher suites, compression methods
        at = _after(hello, at, size)
    for kind, content in _extensions(hello[at + 2 : _after(hello, at, 2)]):
        if kind == _ALPN:
            protocols, at = set(), 2
            while at < len(content):
                end = _after(content, at, 1)
                protocols.add(content[at + 1 : end])
                at = end
            return protocols
    return None


def _extensions(told: bytes) -> list[tuple[int, bytes]]:
    extensions, at = [], 0
    while at < len(told):
        end = _after(told, at + 2, 2)
        extensions.append((int.from_bytes(told[at : at + 2]), told[at + 4 : end]))
        at = end
    return extensions


def _after(told: bytes, at: int, size: int) -> int:
    """Return the end of a vector whose length field, of ``size`` bytes, is at ``at``. Raises
    ValueError."""
    end = at + size + int.from_bytes(told[at : at + size])
    if end > len(told):
        raise ValueError("the ClientHello is truncated")
    return end
