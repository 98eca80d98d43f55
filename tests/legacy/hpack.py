"""HPACK (RFC 7541) as grpcio's encoder uses it, without Huffman codes."""

from __future__ import annotations

_STATIC = """:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate"""
_TABLE = [tuple(line.partition(" ")[::2]) for line in _STATIC.splitlines()]


class Decoder:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._added: list[tuple[str, str]] = []  # the newest first; never evicted

    def fields(self, block: bytes) -> list[tuple[str, str]]:
        """Return names and values. A Huffman-coded value is returned after ``huffman:``."""
        self._block, self._at = block, 0
        received = []
        while self._at < len(block):
            first = block[self._at]
            if first & 0x80:
                received.append(self._entry(self._integer(7)))
            elif first & 0xE0 == 0x20:
                self._integer(5)  # a dynamic table size update
            else:
                index = self._integer(6 if first & 0x40 else 4)
                name = self._entry(index)[0] if index else self._text()
                received.append((name, self._text()))
                if first & 0x40:
                    self._added.insert(0, received[-1])
        return received

    def _entry(self, index: int) -> tuple[str, str]:
        if index <= len(_TABLE):
            name, value = _TABLE[index - 1]
            return name, value
        return self._added[index - len(_TABLE) - 1]

    def _integer(self, bits: int) -> int:
        full = (1 << bits) - 1
        value = self._block[self._at] & full
        self._at += 1
        shift = 0
        while value >= full:
            byte = self._block[self._at]
            self._at += 1
            value += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value

    def _text(self) -> str:
        huffman = self._block[self._at] & 0x80
        size = self._integer(7)
        data = self._block[self._at : self._at + size]
        self._at += size
        return f"huffman:{data.hex()}" if huffman else data.decode("latin-1")
