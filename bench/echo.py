"""A gRPC server that costs almost nothing, because every request gets the same prepared response.

*Strategy.* The server behind a proxy under test must not be the bottleneck, as a server based
on grpcio would be. This server implements only a part of HTTP/2: it does not decode request
headers, because every response is the same. Flow control works in both directions for large
messages. An HTTP/1 GET gets status 200, for readiness checks.

python -m bench.echo PORT RESPONSE_FILE      (the file contains one ModelInferResponse)
"""

import asyncio
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE, RST_STREAM = 0x0, 0x1, 0x4, 0x6, 0x8, 0x3
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS = 0x4, 0x3
FRAME_SIZE = 16_384
DEFAULT_WINDOW = 65_535
OUR_WINDOW = 2**30
FRAME_HEAD = struct.Struct(">I B I")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode an HTTP/2 frame (RFC 9113, section 4.1)."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a header field without index or Huffman code (RFC 7541, section 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEADER_BLOCK = b"\x88" + literal(b"content-type", b"application/grpc")  # 0x88 is :status 200
TRAILER_BLOCK = literal(b"grpc-status", b"0")
OPENING = frame(
    SETTINGS,
    0,
    0,
    struct.pack(">HIHI", INITIAL_WINDOW_SIZE, OUR_WINDOW, MAX_CONCURRENT_STREAMS, 1000),
) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", OUR_WINDOW - DEFAULT_WINDOW))


class Echo(asyncio.Protocol):
    def __init__(self, response: bytes) -> None:
        self.body = memoryview(b"\x00" + struct.pack(">I", len(response)) + response)
        self.unread = bytearray()
        self.greeted = False
        self.received = 0
        self.initial_window = DEFAULT_WINDOW
        self.window = DEFAULT_WINDOW
        self.credit: dict[int, int] = {}
        """Streams without a response so far, and the window updates that have arrived for them."""
        self.sending: dict[int, tuple[int, int]] = {}
        """Streams whose response has begun, with the number of sent bytes and the remaining
        window."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.unread += data
        if not self.greeted and not self._greet():
            return
        at, end = 0, len(self.unread)
        while end - at >= 9:
            head, flags, stream = FRAME_HEAD.unpack_from(self.unread, at)
            size = head >> 8
            if end - at - 9 < size:
                break
            payload = bytes(self.unread[at + 9 : at + 9 + size]) if size <= 64 else b""
            self._frame(head & 0xFF, flags, stream, size, payload)
            at += 9 + size
        del self.unread[:at]

    def _greet(self) -> bool:
        if self.unread.startswith(b"GET "):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
            return False
        if len(self.unread) < len(PREFACE):
            return False
        del self.unread[: len(PREFACE)]
        self.greeted = True
        self.transport.write(OPENING)
        return True

    def _frame(self, kind: int, flags: int, stream: int, size: int, payload: bytes) -> None:
        if kind == DATA:
            self._received(size)
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._respond(stream)
        elif kind == HEADERS:
            self.credit[stream] = 0
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._window(stream, struct.unpack(">I", payload)[0])
        elif kind == RST_STREAM:
            self.sending.pop(stream, None)
            self.credit.pop(stream, None)

    def _received(self, size: int) -> None:
        """Update the connection's window. Streams are shorter than their window and need no
        updates."""
        self.received += size
        if self.received >= OUR_WINDOW // 2:
            self.transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self.received)))
            self.received = 0

    def _settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == INITIAL_WINDOW_SIZE:
                increase = value - self.initial_window
                self.initial_window = value
                self.sending = {s: (sent, w + increase) for s, (sent, w) in self.sending.items()}
        self.transport.write(frame(SETTINGS, ACK, 0, b""))

    def _window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self.window += increment
            for waiting in list(self.sending):
                self._continue(waiting)
        elif stream in self.sending:
            sent, window = self.sending[stream]
            self.sending[stream] = (sent, window + increment)
            self._continue(stream)
        elif stream in self.credit:
            self.credit[stream] += increment

    def _respond(self, stream: int) -> None:
        self.transport.write(frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK))
        self.sending[stream] = (0, self.initial_window + self.credit.pop(stream, 0))
        self._continue(stream)

    def _continue(self, stream: int) -> None:
        """Send as much of the response as both windows allow."""
        sent, window = self.sending[stream]
        parts: list[bytes | memoryview] = []
        while sent < len(self.body) and (budget := min(window, self.window, FRAME_SIZE)) > 0:
            part = self.body[sent : sent + budget]
            parts += (FRAME_HEAD.pack(len(part) << 8 | DATA, 0, stream), part)
            sent, window = sent + len(part), window - len(part)
            self.window -= len(part)
        if sent == len(self.body):
            parts.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILER_BLOCK))
            del self.sending[stream]
        else:
            self.sending[stream] = (sent, window)
        self.transport.writelines(parts)


async def serve(port: int, connection: Callable[[], asyncio.Protocol]) -> None:
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    response = Path(sys.argv[2]).read_bytes()
    uvloop.run(serve(int(sys.argv[1]), lambda: Echo(response)))
