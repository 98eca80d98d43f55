"""HTTP/2 connections in memory, and handmade frames."""

from infergate.transport.http2 import frames, header_blocks
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Event, Failed, Reset
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.http2.roles import Http2ClientConnection, Http2ServerConnection
from object_size import package_size

HEADER_BYTES = 4096
MAX_STREAMS = 10
SETTINGS = frames.settings([])
HELLO = frames.PREFACE + SETTINGS
"""The start of a client's connection."""
REQUEST = header_blocks.encode_block(
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
OK = header_blocks.encode_block((":status", "200"), ("content-type", "application/grpc"))
TRAILERS = header_blocks.encode_block(("grpc-status", "0"))


def header_memory(decoder: HeaderBlockDecoder) -> int:
    """Return the memory in bytes of ``decoder`` and of the modules of the HTTP/2 engine."""
    return package_size("transport.http2", decoder)


def headers(number: int, block: bytes = REQUEST, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(frames.HEADERS, flags, number, block)


def data(number: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, number, payload)


def request_frame(number: int, block: bytes = REQUEST) -> bytes:
    return headers(number, block, frames.END_HEADERS | frames.END_STREAM)


def server(wire_bytes: bytes = HELLO) -> Http2ServerConnection:
    connection = Http2ServerConnection(HEADER_BYTES, MAX_STREAMS)
    connection.receive(wire_bytes, 0.0)
    connection.take_output()
    return connection


def client() -> Http2ClientConnection:
    """Return a client that has received its server's settings."""
    connection = Http2ClientConnection(HEADER_BYTES)
    connection.receive(SETTINGS, 0.0)
    connection.take_output()
    return connection


def sent_frames(connection: Http2Connection) -> list[tuple[int, int, int, bytes]]:
    """Return the kind, flags, stream and payload of each frame to be sent."""
    written = b"".join(map(bytes, connection.take_output()))
    sent, position = [], 0
    while position < len(written):
        first, flags, stream = frames.FRAME_HEADER.unpack_from(written, position)
        position += frames.FRAME_HEADER_SIZE + (first >> 8)
        sent.append((first & 0xFF, flags, stream, written[position - (first >> 8) : position]))
    return sent


def sent_data(connection: Http2Connection) -> list[bytes]:
    """Return the payloads of the DATA frames to be sent."""
    return [payload for kind, *_, payload in sent_frames(connection) if kind == frames.DATA]


def failure(events: list[Event]) -> tuple[int, str]:
    """Return the error with which the connection ended."""
    last = events[-1]
    assert isinstance(last, Failed), events
    return last.code, last.reason


def resets(connection: Http2Connection) -> list[tuple[int, int]]:
    return [
        (stream, int.from_bytes(payload, "big"))
        for kind, _, stream, payload in sent_frames(connection)
        if kind == frames.RST_STREAM
    ]


def ended_streams(events: list[Event]) -> list[tuple[int, int]]:
    """Return the streams reported to their owner as ended, with the error codes."""
    return [(event.stream.id, event.code) for event in events if isinstance(event, Reset)]
