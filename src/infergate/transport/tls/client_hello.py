"""Reads the application protocols (ALPN) that a TLS client offers, before OpenSSL does.

If client and server share no protocol, OpenSSL with Python's settings continues without a protocol,
although RFC 7301, 3.2 requires a fatal alert. Sources: RFC 8446, 4.1.2 and 5.1; RFC 7301, 3.1."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\0\2\2\x78"
"""The fatal alert as a record, in plain text because the server has not sent any bytes yet."""
_MAX_HELLO: Final = 64 * 1024
"""Maximum size of a ClientHello that is examined. OpenSSL handles longer ClientHellos."""
_HANDSHAKE, _CLIENT_HELLO, _ALPN = 0x16, 1, 16
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSION_AND_RANDOM: Final = 34


class AlpnOffer:
    """Collects a client's first bytes until the ClientHello is complete."""

    def __init__(self, protocols: Collection[str]) -> None:
        """``protocols`` are the protocols that the listener supports."""
        self._protocols: Final = {name.encode("ascii") for name in protocols}
        self._received: bytearray | None = bytearray() if protocols else None
        self._hello = bytearray()

    def excludes(self, data: memoryview) -> bool:
        """Return whether the client offers only unsupported protocols. ``data`` is the next part of
        the client's bytes. Until the ClientHello is complete, return False."""
        if self._received is None:
            return False
        self._received += data
        try:
            if not self._is_complete(self._received):
                return False
            offered = _offered_protocols(bytes(self._hello[_MESSAGE_HEAD:]))
        except (IndexError, ValueError):  # malformed or too long: OpenSSL handles it
            offered = None
        self._received = None
        return offered is not None and not self._protocols & offered

    def _is_complete(self, received: bytearray) -> bool:
        """Move complete records from ``received`` to ``_hello``. Return whether the ClientHello is
        complete. Raises ValueError if the bytes are not a ClientHello."""
        hello = self._hello
        while len(received) >= _RECORD_HEAD:
            if received[0] != _HANDSHAKE:
                raise ValueError("not a handshake record")
            end = _RECORD_HEAD + int.from_bytes(received[3:_RECORD_HEAD])
            if len(received) < end:
                return False
            hello += received[_RECORD_HEAD:end]
            del received[:end]
            if len(hello) > _MAX_HELLO or (hello and hello[0] != _CLIENT_HELLO):
                raise ValueError("not a ClientHello")
            if len(hello) >= _MESSAGE_HEAD + int.from_bytes(hello[1:_MESSAGE_HEAD]):
                return len(hello) >= _MESSAGE_HEAD
        return False


def _offered_protocols(hello: bytes) -> set[bytes] | None:
    """Return the protocols in the ALPN extension, or None without this extension. Raises IndexError
    and ValueError."""
    at = _VERSION_AND_RANDOM
    for size in (1, 2, 1):  # skip session ID, cipher suites and compression methods
        at = _vector_end(hello, at, size)
    for kind, content in _extensions(hello[at + 2 : _vector_end(hello, at, 2)]):
        if kind == _ALPN:
            protocols, at = set(), 2
            while at < len(content):
                end = _vector_end(content, at, 1)
                protocols.add(content[at + 1 : end])
                at = end
            return protocols
    return None


def _extensions(block: bytes) -> list[tuple[int, bytes]]:
    extensions, at = [], 0
    while at < len(block):
        end = _vector_end(block, at + 2, 2)
        extensions.append((int.from_bytes(block[at : at + 2]), block[at + 4 : end]))
        at = end
    return extensions


def _vector_end(data: bytes, at: int, size: int) -> int:
    """Return the end of the vector with a length field of ``size`` bytes at ``at``."""
    end = at + size + int.from_bytes(data[at : at + size])
    if end > len(data):
        raise ValueError("the ClientHello is truncated")
    return end
