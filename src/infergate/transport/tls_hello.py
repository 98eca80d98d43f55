"""Which application protocols a TLS client offers, before OpenSSL reads its ClientHello.

OpenSSL, as Python sets it up, continues without a protocol where none is shared; RFC 7301, 3.2
wants a fatal alert. Sources: RFC 8446, 4.1.2 and 5.1; RFC 7301, 3.1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\0\2\2\x78"
"""The alert, as a record of its own: the server has sent nothing yet, so it is in plain text."""
_LONGEST: Final = 64 * 1024
"""Bytes of a ClientHello that are examined; OpenSSL judges longer ones."""
_HANDSHAKE, _CLIENT_HELLO, _ALPN = 0x16, 1, 16
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSION_AND_RANDOM: Final = 34


class Offer:
    """Gathers a client's first bytes until they tell what it offers."""

    __slots__ = ("_begun", "_hello", "_protocols")

    def __init__(self, protocols: Collection[str]) -> None:
        """``protocols``: what is spoken here."""
        self._protocols: Final = {each.encode("ascii") for each in protocols}
        self._begun: bytearray | None = bytearray() if protocols else None
        self._hello = bytearray()

    def excludes(self, data: memoryview) -> bool:
        """Whether the client, which sent ``data`` after what came before, offers protocols, and
        none that is spoken here."""
        if self._begun is None:
            return False
        self._begun += data
        try:
            if not self._is_complete(self._begun):
                return False
            offered = _offered(bytes(self._hello[_MESSAGE_HEAD:]))
        except (IndexError, ValueError):  # it is broken, or long: OpenSSL says how
            offered = None
        self._begun = None
        return offered is not None and not self._protocols & offered

    def _is_complete(self, begun: bytearray) -> bool:
        """Whether the records in ``begun``, which are taken from there, complete a ClientHello.
        Raises ValueError."""
        hello = self._hello
        while len(begun) >= _RECORD_HEAD:
            if begun[0] != _HANDSHAKE:
                raise ValueError("no handshake")
            end = _RECORD_HEAD + int.from_bytes(begun[3:_RECORD_HEAD])
            if len(begun) < end:
                return False
            hello += begun[_RECORD_HEAD:end]
            del begun[:end]
            if len(hello) > _LONGEST or (hello and hello[0] != _CLIENT_HELLO):
                raise ValueError("no ClientHello")
            if len(hello) >= _MESSAGE_HEAD + int.from_bytes(hello[1:_MESSAGE_HEAD]):
                return len(hello) >= _MESSAGE_HEAD
        return False


def _offered(hello: bytes) -> set[bytes] | None:
    """The protocols in the ALPN extension; None: there is none. Raises IndexError, ValueError."""
    at = _VERSION_AND_RANDOM
    for size in (1, 2, 1):  # session, cipher suites, compression
        at = _after(hello, at, size)
    for kind, content in _extensions(hello[at + 2 : _after(hello, at, 2)]):
        if kind == _ALPN:
            found, at = set(), 2
            while at < len(content):
                end = _after(content, at, 1)
                found.add(content[at + 1 : end])
                at = end
            return found
    return None


def _extensions(told: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(told):
        end = _after(told, at + 2, 2)
        found.append((int.from_bytes(told[at : at + 2]), told[at + 4 : end]))
        at = end
    return found


def _after(told: bytes, at: int, size: int) -> int:
    """Where a vector ends whose length, of ``size`` bytes, is at ``at``. Raises ValueError."""
    end = at + size + int.from_bytes(told[at : at + size])
    if end > len(told):
        raise ValueError("it is cut short")
    return end
