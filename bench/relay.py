"""A relay without any features: the floor of the tables, which no gateway in Python can beat.

*Strategy.* It moves requests from many connections to one and responses back, on the same event
loop and sockets as infergate, with nothing else: no header is decoded, nothing is checked, limited,
routed, counted or logged, and windows are so large that no update is needed. For gRPC it only
changes the numbers of streams; for JSON it also converts the numbers of the tensor, with the
library that infergate uses.

python -m bench.relay PORT SERVER_PORT [MESSAGE_FILE]      (with a ModelInferRequest, its clients
send the same tensor as JSON over HTTP/1.1)
"""

import array
import asyncio
import itertools
import re
import struct
import sys
from pathlib import Path
from typing import cast

import orjson
import uvloop
from tritonclient.grpc import service_pb2

from .echo import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BLOCK,
    HEADERS,
    OPENING,
    PREFACE,
    SETTINGS,
    TRAILER_BLOCK,
    frame,
    literal,
)
from .http_echo import HEAD_END, LENGTH

_HEAD = struct.Struct(">I B I")
_REQUEST_BLOCK = (
    b"\x83\x86"  # :method POST, :scheme http (RFC 7541, appendix A)
    + literal(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    + literal(b":authority", b"relay")
    + literal(b"te", b"trailers")
    + literal(b"content-type", b"application/grpc")
)


class _Frames(asyncio.Protocol):
    """A connection that splits what it receives into HTTP/2 frames, each in one piece."""

    unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data, at = self.unread + data, 0
        while len(data) - at >= 9:
            head, flags, stream = _HEAD.unpack_from(data, at)
            end = at + 9 + (head >> 8)
            if end > len(data):
                break
            self.frame_received(head & 0xFF, flags, stream, data[at + 9 : end])
            at = end
        self.unread = data[at:]

    def frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        raise NotImplementedError


class _Server(_Frames):
    """The only connection to the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.streams = itertools.count(1, 2)
        self.waiting: dict[int, tuple[_GrpcClient | _JsonClient, int]] = {}
        self.transport.write(PREFACE + OPENING)

    def send(self, client: "_GrpcClient | _JsonClient", stream: int, message: bytes) -> None:
        number = next(self.streams)
        self.waiting[number] = client, stream
        self.transport.write(
            frame(HEADERS, END_HEADERS, number, _REQUEST_BLOCK)
            + frame(DATA, END_STREAM, number, message)
        )

    def frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            client, theirs = self.waiting.pop(stream)
            client.respond(theirs, payload)
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0, b""))


class _GrpcClient(_Frames):
    def __init__(self, server: _Server) -> None:
        self.server = server
        self.missing = len(PREFACE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(OPENING)

    def data_received(self, data: bytes) -> None:
        if self.missing:
            taken = min(self.missing, len(data))
            self.missing, data = self.missing - taken, data[taken:]
        super().data_received(data)

    def frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA and payload:
            self.server.send(self, stream, payload)
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0, b""))

    def respond(self, stream: int, message: bytes) -> None:
        self.transport.write(
            frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK)
            + frame(DATA, 0, stream, message)
            + frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILER_BLOCK)
        )


class _JsonClient(asyncio.Protocol):
    def __init__(self, server: _Server, message: bytes) -> None:
        self.server = server
        request = service_pb2.ModelInferRequest.FromString(message)
        size = len(request.raw_input_contents[0])
        self.before = b"\x00" + struct.pack(">I", len(message)) + message[:-size]
        self.raw = slice(-size, None)
        self.unread = b""
        self.answer = {"model_name": request.model_name, "model_version": "1"}
        self.output = {"name": "OUTPUT0", "datatype": "FP32", "shape": [*request.inputs[0].shape]}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.unread += data
        head, end, body = self.unread.partition(HEAD_END)
        if end and len(body) >= int(cast("re.Match[bytes]", LENGTH.search(head + end))[1]):
            self.unread = b""
            numbers = array.array("f", orjson.loads(body)["inputs"][0]["data"])
            self.server.send(self, 0, self.before + numbers.tobytes())

    def respond(self, _stream: int, message: bytes) -> None:
        data = array.array("f", message[self.raw]).tolist()
        body = orjson.dumps({**self.answer, "outputs": [{**self.output, "data": data}]})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


async def _serve(port: int, server_port: int, message: bytes) -> None:
    loop = asyncio.get_running_loop()
    _, server = await loop.create_connection(_Server, "127.0.0.1", server_port)
    listener = await loop.create_server(
        lambda: _JsonClient(server, message) if message else _GrpcClient(server), "127.0.0.1", port
    )
    await listener.serve_forever()


if __name__ == "__main__":
    message = Path(sys.argv[3]).read_bytes() if sys.argv[3:] else b""
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2]), message))
