"""HTTP/2 frames that are written by hand, so that they can be invalid, and a server that sends such
frames. Header fields are uncompressed literals.

References: RFC 9113 (frames), RFC 7541 6.2.2 (literal header fields without indexing).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from faults.peer import Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    if len(value) < 127:
        return bytes([len(value)]) + value
    length, more = len(value) - 127, bytearray(b"\x7f")
    while length >= 128:
        more.append(length & 127 | 128)
        length >>= 7
    more.append(length)
    return bytes(more) + value


def fields(*pairs: tuple[str, str]) -> bytes:
    """Return a header block."""
    return b"".join(b"\0" + _text(name.encode()) + _text(value.encode()) for name, value in pairs)


@functools.cache  # floods repeat the same block
def request_headers(path: str, *more: tuple[str, str]) -> bytes:
    return fields(
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
        ("content-type", "application/grpc"), ("te", "trailers"), *more,
    )  # fmt: skip


def message(data: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(data)) + data


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames(read: Callable[[int], bytes]) -> Iterator[Frame]:
    while True:
        head = read(9)
        length = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        yield Frame(kind, flags, stream & 0x7FFFFFFF, read(length))


class Server:
    """The server's end of a gRPC backend connection, controlled by the test."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.read(len(PREFACE))
        connection.write(frame(SETTINGS, 0, 0))
        self.frames = frames(connection.read)

    def call(self) -> int:
        """Wait until the next request is complete, and return its stream ID. Raises Gone if the
        gateway closes the connection."""
        for each in self.frames:
            if each.kind == SETTINGS and not each.flags & ACK:
                self._connection.write(frame(SETTINGS, ACK, 0))
            elif each.kind == PING and not each.flags & ACK:
                self._connection.write(frame(PING, ACK, 0, each.payload))
            elif each.kind in (HEADERS, DATA) and each.flags & END_STREAM:
                return each.stream
        raise AssertionError("the frames ended without Gone")

    def send(self, *all_frames: bytes) -> None:
        self._connection.write(b"".join(all_frames))

    def wait_closed(self) -> None:
        self._connection.wait_closed()


OK_HEADERS = fields((":status", "200"), ("content-type", "application/grpc"))


def headers(stream: int, block: bytes = OK_HEADERS) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, block)


def data(stream: int, payload: bytes) -> bytes:
    return frame(DATA, 0, stream, payload)


def trailers(stream: int, *pairs: tuple[str, str]) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields(*pairs))


def answer(stream: int, message_bytes: bytes) -> bytes:
    """Return the frames of a complete successful response."""
    return (
        headers(stream)
        + data(stream, message(message_bytes))
        + trailers(stream, ("grpc-status", "0"))
    )
