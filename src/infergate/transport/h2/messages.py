"""gRPC messages in the body of a stream: a compression flag, a length, and that many bytes.

Source: gRPC over HTTP/2, "Length-Prefixed-Message" and "Message-Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.inflation import GZIP, ZLIB, Corrupt, Oversized, pieces
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.transport.inflating import Late, inflated
from infergate.transport.rooms import room

PREFIX: Final = struct.Struct(">BI")
_SIZE: Final = PREFIX.size
_LONG: Final = 64 * KIB
OVERHEAD: Final = 64 * KIB
"""Bytes by which a message may exceed `limits.body`: the fields around a tensor's data."""
ENCODINGS: Final = {"gzip": GZIP, "deflate": ZLIB}
"""Accepted compressions, and zlib's parameter for each; deflate means the zlib format."""
ACCEPTED: Final = "identity, deflate, gzip"


class TooLong(GatewayError):  # noqa: N818
    """A message exceeds the size limit, as it is or when inflated."""

    def __init__(self, told: str) -> None:
        super().__init__(Kind.TOO_LARGE, told, limit="body")


class NoMessage(GatewayError):  # noqa: N818
    """The bytes are not a valid message."""

    def __init__(self, told: str) -> None:
        super().__init__(Kind.BAD_REQUEST, told)


def prefix(length: int) -> bytes:
    """Return the prefix of an uncompressed message."""
    return PREFIX.pack(0, length)


def too_long(length: int, most: int) -> TooLong:
    """Return the error for a message of `length` bytes, worded as in grpc-core."""
    return TooLong(f"Received message larger than max ({length} vs. {most})")


def _checked(flag: int, length: int, most: int, encoding: str) -> None:
    if length > most:
        raise too_long(length, most)
    if flag > 1:
        raise NoMessage(f"a message with the invalid compression flag {flag}")
    if flag and encoding not in ENCODINGS:
        raise NoMessage("a compressed message without a known grpc-encoding")


def _inflated(data: Buffer, most: int, encoding: str) -> Buffer | Late:
    return inflated(_pieces(data, most, encoding), len(data), most)


def _pieces(data: Buffer, most: int, encoding: str) -> Iterator[bytes]:
    """Inflate a message. Raises MessageTooLongError and InvalidMessageError."""
    try:
        yield from pieces(data, ENCODINGS[encoding], most)
    except Corrupt as error:
        raise NoMessage(f"a message compressed with {encoding} {error}") from None
    except Oversized:
        raise TooLong(f"Received message larger than max (compressed, vs. {most})") from None


class OneMessage:
    """Reads a body that must be one message of at most `max_length` bytes.

    `length` is the announced length, None until it has arrived. `message` is `bytes` if it arrived
    in one piece; a message that arrives in several is assembled in its final buffer. A compressed
    message may be `DeferredInflation`.
    """

    __slots__ = ("_encoding", "_filled", "_flag", "_head", "_most", "_room", "length", "message")

    def __init__(self, most: int, encoding: str) -> None:
        self._most: Final = most
        self._encoding: Final = encoding
        self._head = b""
        self._flag = 0
        self._room: memoryview | None = None
        self._filled = 0
        self.length: int | None = None
        self.message: Buffer | Late | None = None

    def add(self, parts: Sequence[Buffer]) -> None:
        """Take part of the body. Raises MessageTooLongError and InvalidMessageError."""
        for part in parts:
            if self._room is not None:
                self._fill(part)
            elif self.message is None:
                self._begin(part)
            elif len(part):
                raise NoMessage("more than one message")

    def _begin(self, data: Buffer) -> None:
        if self._head:
            data = self._head + data
        if len(data) < _SIZE:
            self._head = bytes(data)
            return
        self._head = b""
        self._flag, length = PREFIX.unpack_from(data)
        self.length = length
        _checked(self._flag, length, self._most, self._encoding)
        if len(data) == _SIZE + length:
            self._finish(bytes(data[_SIZE:]))
            return
        self._room = room(length)  # pages are allocated only as bytes arrive
        self._fill(data[_SIZE:])

    def _fill(self, data: Buffer) -> None:
        buffer, end = self._room, self._filled + len(data)
        assert buffer is not None
        if end > len(buffer):
            raise NoMessage("more than one message")
        buffer[self._filled : end] = data
        self._filled = end
        if end == len(buffer):
            self._room = None
            self._finish(buffer)

    def _finish(self, data: Buffer) -> None:
        self.message = _inflated(data, self._most, self._encoding) if self._flag else data


class Messages:
    """Reads a body of any number of messages, each of at most `max_length` bytes.

    Messages are split off when they are asked for. A long message is assembled in its final buffer,
    once it was asked for.
    """

    __slots__ = ("_body", "_encoding", "_filled", "_flag", "_left", "_most", "_room")

    def __init__(self, most: int, encoding: str) -> None:
        self._body = bytearray()  # a list of small pieces would take far more memory
        self._left = 0  # bytes to come of the last message, after `stop_after_current`
        self._most: Final = most
        self._encoding: Final = encoding
        self._room: memoryview | None = None  # a long message, which comes before `_body`
        self._filled = 0
        self._flag = 0

    def add(self, parts: Sequence[Buffer]) -> None:
        """Take part of the body."""
        for part in parts:
            buffer = self._room
            if buffer is None or self._filled == len(buffer):
                self._body += part
                continue
            end = min(self._filled + len(part), len(buffer))
            count = end - self._filled
            buffer[self._filled : end] = part[:count]
            self._filled = end
            if count < len(part):
                self._body += part[count:]

    def close(self) -> None:
        """Accept no message after the one that has begun; only `add_last` may follow."""
        if self._room is not None and self._filled < len(self._room):
            self._left = len(self._room) - self._filled
            return
        body, end = self._body, 0
        while len(body) - end >= _SIZE:
            end += _SIZE + int(PREFIX.unpack_from(body, end)[1])
        del body[end:]  # an incomplete prefix: the message has not begun
        self._left = end - len(body)

    def add_last(self, parts: Sequence[Buffer]) -> None:
        """Take part of the body after `stop_after_current`, as far as it belongs to the last
        message."""
        for part in parts:
            accepted = part[: self._left]
            self._left -= len(accepted)
            self.add((accepted,))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held, not even part of a message."""
        return not self._body and self._room is None

    @property
    def held(self) -> int:
        """Number of bytes held."""
        return len(self._body) + (0 if self._room is None else _SIZE + self._filled)

    @property
    def lacking(self) -> int:
        """Bytes still to come of the message that has begun."""
        if self._room is not None:
            return len(self._room) - self._filled
        body = self._body
        if len(body) < _SIZE:
            return 0
        return int(PREFIX.unpack_from(body)[1]) + _SIZE - len(body)

    def take(self) -> tuple[Buffer | Late, int] | None:
        """Return the next message and how many bytes of the body it took, or None until it is
        complete. Raises MessageTooLongError and InvalidMessageError."""
        if self._room is not None:
            return self._take_long(self._room)
        body = self._body
        if len(body) < _SIZE:
            return None
        flag, length = PREFIX.unpack_from(body)
        _checked(flag, length, self._most, self._encoding)
        end = _SIZE + length
        if len(body) < end:
            if length >= _LONG:
                self._begin_long(flag, length)
            return None
        with memoryview(body) as view:
            data = bytes(view[_SIZE:end])
        del body[:end]
        return (_inflated(data, self._most, self._encoding) if flag else data), end

    def _begin_long(self, flag: int, length: int) -> None:
        body, self._body = self._body, bytearray()
        self._flag, self._filled = flag, len(body) - _SIZE
        self._room = room(length)  # pages are allocated only as bytes arrive
        self._room[: self._filled] = memoryview(body)[_SIZE:]

    def _take_long(self, data: memoryview) -> tuple[Buffer | Late, int] | None:
        if self._filled < len(data):
            return None
        self._room = None
        end = _SIZE + len(data)
        return (_inflated(data, self._most, self._encoding) if self._flag else data), end
