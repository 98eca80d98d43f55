"""A relay without any features. Its cost is the floor in the tables: no gateway in Python can be
cheaper.

It moves requests from many connections to one connection, and responses back, with infergate's
event loop and sockets. For gRPC, it only changes stream identifiers. For JSON, it also converts the
tensor's numbers. Its windows are so large that they need no updates.

python -m bench.relay PORT SERVER_PORT [MESSAGE_FILE]    (if the file, a ModelInferRequest, is
given, clients send its tensor as JSON over HTTP/1.1)
"""

import array
import asyncio
import itertools
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import orjson
import uvloop
from tritonclient.grpc import service_pb2

from . import echo as h2
from .echo import frame, literal
from .http_echo import HEAD_END, LENGTH

_REQUEST_BLOCK = (
    b"\x83\x86"  # :method POST, :scheme http (RFC 7541, appendix A)
    + literal(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    + literal(b"content-type", b"application/grpc")
)


class _Frames(asyncio.Protocol):
    """A connection that passes each received HTTP/2 frame to ``frame``."""

    unread = b""
    frame: Callable[[int, int, int, bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data, at = self.unread + data, 0
        while len(data) - at >= 9:
            head, flags, stream = h2.FRAME_HEAD.unpack_from(data, at)
            end = at + 9 + (head >> 8)
            if end > len(data):
                break
            self.frame(head & 0xFF, flags, stream, data[at + 9 : end])
            at = end
        self.unread = data[at:]


class _Server(_Frames):
    """The only connection to the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.streams = itertools.count(1, 2)
        self.waiting: dict[int, tuple[_GrpcClient | _JsonClient, int]] = {}
        self.transport.write(h2.PREFACE + h2.OPENING)

    def send(self, client: "_GrpcClient | _JsonClient", stream: int, message: bytes) -> None:
        number = next(self.streams)
        self.waiting[number] = client, stream
        self.transport.write(
            frame(h2.HEADERS, h2.END_HEADERS, number, _REQUEST_BLOCK)
            + frame(h2.DATA, h2.END_STREAM, number, message)
        )

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.DATA:
            client, client_stream = self.waiting.pop(stream)
            client.respond(client_stream, payload)
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self.transport.write(frame(h2.SETTINGS, h2.ACK, 0, b""))


class _GrpcClient(_Frames):
    def __init__(self, server: _Server) -> None:
        self.server, self.missing = server, len(h2.PREFACE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(h2.OPENING)

    def data_received(self, data: bytes) -> None:
        if self.missing:
            consumed = min(self.missing, len(data))
            self.missing, data = self.missing - consumed, data[consumed:]
        super().data_received(data)

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.DATA and payload:
            self.server.send(self, stream, payload)
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self.transport.write(frame(h2.SETTINGS, h2.ACK, 0, b""))

    def respond(self, stream: int, message: bytes) -> None:
        self.transport.write(
            frame(h2.HEADERS, h2.END_HEADERS, stream, h2.HEADER_BLOCK)
            + frame(h2.DATA, 0, stream, message)
            + frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, h2.TRAILER_BLOCK)
        )


class _JsonClient(asyncio.Protocol):
    def __init__(self, server: _Server, message: bytes) -> None:
        self.server = server
        request = service_pb2.ModelInferRequest.FromString(message)
        size = len(request.raw_input_contents[0])
        self.before = b"\x00" + struct.pack(">I", len(message)) + message[:-size]
        self.unread, self.raw = b"", slice(-size, None)
        self.model = {"model_name": request.model_name, "model_version": "1"}
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
        body = orjson.dumps({**self.model, "outputs": [{**self.output, "data": data}]})
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
