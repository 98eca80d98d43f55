"""Reads gRPC messages from the body of a stream. Each message consists of a compression flag, a
length in bytes, and the data.

Sources: gRPC over HTTP/2, "Length-Prefixed-Message" and "Message-Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from infergate.core import inflation
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.transport.net.buffer_pool import allocate
from infergate.transport.net.deferred_inflation import DeferredInflation, inflate_or_defer

PREFIX: Final = struct.Struct(">BI")
_PREFIX_SIZE: Final = PREFIX.size
_LONG_MESSAGE: Final = 64 * KIB
MESSAGE_OVERHEAD: Final = 64 * KIB
"""Bytes by which a message may exceed `limits.body`, for the fields around a tensor's data."""
ENCODINGS: Final = {"gzip": inflation.GZIP, "deflate": inflation.ZLIB}
"""Accepted encodings, with zlib's `wbits` for each encoding. The encoding "deflate" is the zlib
format."""
ACCEPTED_ENCODINGS: Final = "identity, deflate, gzip"


class MessageError(GatewayError):
    """The error for a message that cannot be read."""


class MessageTooLongError(MessageError):
    """A message exceeds the size limit, before or after inflation."""

    def __init__(self, public: str) -> None:
        super().__init__(Kind.TOO_LARGE, public, limit="body")


class InvalidMessageError(MessageError):
    """The bytes are not a valid message."""

    def __init__(self, public: str) -> None:
        super().__init__(Kind.BAD_REQUEST, public)


def _check_prefix(flag: int, length: int, max_length: int, encoding: str) -> None:
    if length > max_length:
        # The text is the same as in grpc-core.
        raise MessageTooLongError(f"Received message larger than max ({length} vs. {max_length})")
    if flag > 1:
        raise InvalidMessageError(f"a message has the compression flag {flag}; expected 0 or 1")
    if flag and encoding not in ENCODINGS:
        raise InvalidMessageError(
            "a message is compressed, but grpc-encoding is not gzip or deflate"
        )


def _inflated(data: Buffer, max_length: int, encoding: str) -> Buffer | DeferredInflation:
    return inflate_or_defer(_pieces(data, max_length, encoding), len(data), max_length)


def _pieces(data: Buffer, max_length: int, encoding: str) -> Iterator[bytes]:
    """Yield the pieces of an inflated message. Raises MessageError."""
    try:
        yield from inflation.inflate_pieces(data, ENCODINGS[encoding], max_length)
    except inflation.CorruptDataError as error:
        raise InvalidMessageError(f"a message compressed with {encoding} {error}") from None
    except inflation.InflatedTooLargeError:
        public = f"Received message larger than max (compressed, vs. {max_length})"
        raise MessageTooLongError(public) from None


def read_whole(parts: Sequence[Buffer], max_length: int) -> bytes | None:
    """Return the message if `parts`, the start of a body, are one uncompressed message of at most
    `max_length` bytes. Return None if `SingleMessageReader` must read the body."""
    if len(parts) != 1:
        return None
    part = parts[0]
    length = len(part) - _PREFIX_SIZE
    if not 0 <= length <= max_length:
        return None
    flag, announced = PREFIX.unpack_from(part)
    if announced != length or flag:
        return None
    message = part[_PREFIX_SIZE:]
    return message if type(message) is bytes else bytes(message)


class SingleMessageReader:
    """Reads a body that must be one message of at most `max_length` bytes. `length` is the
    announced length, or None until the length has arrived. A message in one piece has the type
    `bytes`. A message in several pieces is assembled in its final buffer."""

    def __init__(self, max_length: int, encoding: str) -> None:
        self._max_length: Final = max_length
        self._encoding: Final = encoding
        self._partial_prefix = b""
        self._flag = 0
        self._buffer: memoryview | None = None
        self._filled = 0
        self._size = 0  # the size of `_buffer`
        self.length: int | None = None
        self.message: Buffer | DeferredInflation | None = None

    def add(self, parts: Sequence[Buffer]) -> None:
        """Add bytes of the body. Raises MessageError."""
        for part in parts:
            buffer = self._buffer
            if buffer is not None:
                start = self._filled
                end = start + len(part)
                if end < self._size:
                    buffer[start:end] = part
                    self._filled = end
                else:
                    self._fill(part)
            elif self.message is None:
                self._start(part)
            elif len(part):
                raise InvalidMessageError("the body has more than one message; expected one")

    def _start(self, data: Buffer) -> None:
        if self._partial_prefix:
            data = self._partial_prefix + data
        if len(data) < _PREFIX_SIZE:
            self._partial_prefix = bytes(data)
            return
        self._partial_prefix = b""
        self._flag, length = PREFIX.unpack_from(data)
        self.length = length
        _check_prefix(self._flag, length, self._max_length, self._encoding)
        if len(data) == _PREFIX_SIZE + length:
            self._finish(bytes(data[_PREFIX_SIZE:]))
            return
        self._buffer = allocate(length)  # pages are allocated only as bytes arrive
        self._size = length
        self._fill(data[_PREFIX_SIZE:])

    def _fill(self, data: Buffer) -> None:
        buffer, end = self._buffer, self._filled + len(data)
        assert buffer is not None
        if end > len(buffer):
            raise InvalidMessageError("the body has more than one message; expected one")
        buffer[self._filled : end] = data
        self._filled = end
        if end == len(buffer):
            self._buffer = None
            self._finish(buffer)

    def _finish(self, data: Buffer) -> None:
        self.message = _inflated(data, self._max_length, self._encoding) if self._flag else data


class MessageReader:
    """Reads a body with any number of messages, each of at most `max_length` bytes. Messages are
    split off on demand. A long message is assembled in its final buffer."""

    def __init__(self, max_length: int, encoding: str) -> None:
        self._body = bytearray()  # a list of small pieces would take far more memory
        self._last_missing = 0  # missing bytes of the last message, after `stop_after_current`
        self._max_length: Final = max_length
        self._encoding: Final = encoding
        self._buffer: memoryview | None = None  # a long message, which comes before `_body`
        self._filled = 0
        self._flag = 0

    def add(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            buffer = self._buffer
            if buffer is None or self._filled == len(buffer):
                self._body += part
                continue
            end = min(self._filled + len(part), len(buffer))
            count = end - self._filled
            buffer[self._filled : end] = part[:count]
            self._filled = end
            if count < len(part):
                self._body += part[count:]

    def stop_after_current(self) -> None:
        """Accept only messages that have begun to arrive. From now on, call `add_last`,
        not `add`."""
        if self._buffer is not None and self._filled < len(self._buffer):
            self._last_missing = len(self._buffer) - self._filled
            return
        body, end = self._body, 0
        while len(body) - end >= _PREFIX_SIZE:
            end += _PREFIX_SIZE + int(PREFIX.unpack_from(body, end)[1])
        del body[end:]  # an incomplete prefix is not the start of a message
        self._last_missing = end - len(body)

    def add_last(self, parts: Sequence[Buffer]) -> None:
        """Add bytes of the body after `stop_after_current`. Bytes after the last message are
        dropped."""
        for part in parts:
            accepted = part[: self._last_missing]
            self._last_missing -= len(accepted)
            self.add((accepted,))

    @property
    def is_empty(self) -> bool:
        """Whether the reader holds no bytes."""
        return not self._body and self._buffer is None

    @property
    def held_bytes(self) -> int:
        return len(self._body) + (0 if self._buffer is None else _PREFIX_SIZE + self._filled)

    @property
    def missing_bytes(self) -> int:
        """Number of bytes of the current message that have not arrived, or 0 if its length has not
        arrived."""
        if self._buffer is not None:
            return len(self._buffer) - self._filled
        body = self._body
        if len(body) < _PREFIX_SIZE:
            return 0
        return int(PREFIX.unpack_from(body)[1]) + _PREFIX_SIZE - len(body)

    def next_message(self) -> tuple[Buffer | DeferredInflation, int] | None:
        """Return the next message and its length in the body, or None if the message is incomplete.
        Raises MessageError."""
        if self._buffer is not None:
            return self._take_long(self._buffer)
        body = self._body
        if len(body) < _PREFIX_SIZE:
            return None
        flag, length = PREFIX.unpack_from(body)
        _check_prefix(flag, length, self._max_length, self._encoding)
        end = _PREFIX_SIZE + length
        if len(body) < end:
            if length >= _LONG_MESSAGE:
                self._begin_long(flag, length)
            return None
        with memoryview(body) as view:
            data = bytes(view[_PREFIX_SIZE:end])
        del body[:end]
        return (_inflated(data, self._max_length, self._encoding) if flag else data), end

    def _begin_long(self, flag: int, length: int) -> None:
        body, self._body = self._body, bytearray()
        self._flag, self._filled = flag, len(body) - _PREFIX_SIZE
        self._buffer = allocate(length)  # pages are allocated only as bytes arrive
        self._buffer[: self._filled] = memoryview(body)[_PREFIX_SIZE:]

    def _take_long(self, data: memoryview) -> tuple[Buffer | DeferredInflation, int] | None:
        if self._filled < len(data):
            return None
        self._buffer = None
        end = _PREFIX_SIZE + len(data)
        return (_inflated(data, self._max_length, self._encoding) if self._flag else data), end
