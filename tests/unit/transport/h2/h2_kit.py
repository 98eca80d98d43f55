"""Both ends of an HTTP/2 connection in memory, and frames by hand."""

from __future__ import annotations

from infergate.transport.h2 import fields, frames
from infergate.transport.h2.connection import Connection
from infergate.transport.h2.events import Event, Failed, Reset
from infergate.transport.h2.roles import ClientConnection, ServerConnection

HEADER_BYTES = 4096
MOST = 10
SETTINGS = frames.settings([])
HELLO = frames.PREFACE + SETTINGS
ASKING = fields.block(
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
OK = fields.block((":status", "200"), ("content-type", "application/grpc"))
TRAILERS = fields.block(("grpc-status", "0"))


def headers(number: int, block: bytes = ASKING, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(frames.HEADERS, flags, number, block)


def data(number: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, number, payload)


def asked(number: int, block: bytes = ASKING) -> bytes:
    return headers(number, block, frames.END_HEADERS | frames.END_STREAM)


def server(said: bytes = HELLO) -> ServerConnection:
    made = ServerConnection(HEADER_BYTES, MOST)
    made.receive(said, 0.0)
    made.take()
    return made


def client() -> ClientConnection:
    """Greeted by its server."""
    made = ClientConnection(HEADER_BYTES)
    made.receive(SETTINGS, 0.0)
    made.take()
    return made


def sent(connection: Connection) -> list[tuple[int, int, int, bytes]]:
    """What is to be sent, as kind, flags, stream and payload."""
    written = b"".join(map(bytes, connection.take()))
    found, at = [], 0
    while at < len(written):
        first, flags, stream = frames.HEAD.unpack_from(written, at)
        at += frames.HEAD_SIZE + (first >> 8)
        found.append((first & 0xFF, flags, stream, written[at - (first >> 8) : at]))
    return found


def failure(events: list[Event]) -> tuple[int, str]:
    """How the connection ended."""
    last = events[-1]
    assert isinstance(last, Failed), events
    return last.code, last.reason


def resets(connection: Connection) -> list[tuple[int, int]]:
    """The streams that are reset, and why."""
    return [
        (stream, int.from_bytes(payload, "big"))
        for kind, _, stream, payload in sent(connection)
        if kind == frames.RST_STREAM
    ]


def told_of(events: list[Event]) -> list[tuple[int, int]]:
    """The streams whose owner is told that they are over, and why."""
    return [(event.stream.id, event.code) for event in events if isinstance(event, Reset)]
