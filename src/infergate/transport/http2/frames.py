"""HTTP/2 frames on the wire (RFC 9113, sections 4, 6 and 7): constants and serialization."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
LAST_STREAM: Final = 2**31 - 1
"""The highest stream identifier. In a GOAWAY, it means that all streams are processed."""
MIN_FRAME_SIZE: Final = 16_384  # the payload size that every peer accepts
LARGEST_FRAME_SIZE: Final = 2**24 - 1

FRAME_HEADER: Final = struct.Struct(">IBI")
"""A frame header: length and type in one word (`length << 8 | type`), flags, and stream
identifier."""
FRAME_HEADER_SIZE: Final = FRAME_HEADER.size
UINT32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
_LAST_AND_CODE: Final = struct.Struct(">II")


class Code(enum.IntEnum):
    """The reason for ending a stream or a connection (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2ConnectionError(Exception):
    """The peer violated the protocol or exceeded a limit; the connection must end."""

    def __init__(self, reason: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class Http2StreamError(Exception):
    """The peer violated the protocol on one stream; the stream must be reset."""

    def __init__(self, stream: int, code: Code) -> None:
        super().__init__(f"stream {stream}: {code.name}")
        self.stream = stream
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of any type."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame with `values`, which are pairs of identifier and value."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in values))


def goaway(last: int, code: int, reason: str) -> bytes:
    """Return a GOAWAY, which means that no stream after `last` was or will be processed."""
    return frame(GOAWAY, 0, 0, _LAST_AND_CODE.pack(last, code) + reason.encode())


def read_goaway(payload: bytes) -> tuple[int, int, bytes]:
    """Return the last stream, code and reason of a GOAWAY payload of at least eight bytes."""
    last, code = _LAST_AND_CODE.unpack_from(payload)
    return last & LAST_STREAM, code, payload[_LAST_AND_CODE.size :]


def reset(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, UINT32.pack(code))


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, UINT32.pack(increment))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
PONG_HEADER: Final = FRAME_HEADER.pack(8 << 8 | PING, ACK, 0)
"""The frame header of a PING acknowledgement."""
