"""Load over V2, the legacy protocols and GraphPipe, from clients that keep their connections and
fail at the first wrong response."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np

from infergate.codecs.base import Codec
from infergate.codecs.profiles import GENERIC, TRTSERVER
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts

PROFILES = {"trtis-http": TRTSERVER, "trtis-grpc": TRTSERVER}
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
VALUES = np.arange(6, dtype=np.float32)
TENSOR_METADATA = (
    (TensorMetadata("INPUT0", "FP32", (-1,)),),
    (TensorMetadata("OUTPUT0", "FP32", (-1,)),),
)


def request_message(model: str) -> InferRequest:
    return InferRequest(model, inputs=(tensor_from_array("INPUT0", Datatype.FP32, VALUES),))


def repeating(model: str, count: int, delay: int) -> InferRequest:
    return InferRequest(
        model,
        id="r",
        inputs=(
            tensor_from_array("IN", Datatype.INT32, np.arange(count, dtype=np.int32)),
            tensor_from_array("DELAY", Datatype.UINT32, np.full(count, delay, np.uint32)),
        ),
    )


def described(model: str) -> ModelMetadata:
    return ModelMetadata(model, inputs=TENSOR_METADATA[0], outputs=TENSOR_METADATA[1])


def build_wire_request(protocol: str, model: str = "identity", prefix: str = "") -> Any:
    profile = PROFILES.get(protocol, GENERIC)
    wire = (
        plugins()[protocol]
        .create({})
        .build_request(request_message(model), profile, described(model))
    )
    if prefix:
        wire.path = f"{prefix}{model}"
    return wire


class Connection:
    """A connection for HTTP/1.1 or GraphPipe frames, which is reopened if the server closes it."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._reader: asyncio.StreamReader | None = None
        self.opened = 0
        """The number of connections opened so far."""

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
            self.opened += 1
        return self._reader, self._writer

    async def close(self) -> None:
        if self._reader is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
            self._reader = None

    async def is_closed(self) -> bool:
        """Return whether the server closes the connection without sending more."""
        assert self._reader is not None
        return await self._reader.read() == b""

    async def send_request(self, wire: HttpRequest) -> HttpResponse:
        reader, writer = await self._connected()
        body = bytes(join_parts(wire.body))
        headers = {"host": "x", "content-length": str(len(body)), **wire.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        query = f"?{wire.query}" if wire.query else ""
        writer.write(f"{wire.method} {wire.path}{query} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *pairs = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (pair.split(": ", 1) for pair in pairs)}
        if "chunked" in headers.get("transfer-encoding", ""):
            parts = []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                parts.append((await reader.readexactly(size + 2))[:-2])
            await reader.readexactly(2)
            answer = b"".join(parts)
        else:
            answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return HttpResponse(int(first.split()[1]), headers, [answer])

    async def frame(self, wire: HttpRequest) -> HttpResponse:
        reader, writer = await self._connected()
        body = bytes(join_parts(wire.body))
        writer.write(struct.pack("<I", len(body)) + body)
        (length,) = struct.unpack("<I", await reader.readexactly(4))
        return HttpResponse(200, {}, [await reader.readexactly(length)])


Send = Callable[[Any], Any]


@dataclass
class Load:
    """The state of the load. ``served`` counts the correct responses by kind of client."""

    served: dict[str, int] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _counted: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def _connection(self, address: str) -> Connection:
        created = Connection(address)
        self.connections.append(created)
        return created

    def count(self, name: str) -> None:
        self.served[name] = self.served.get(name, 0) + 1
        self._counted.release()

    async def wait_for_responses(self, responses: int) -> None:
        self._counted = asyncio.Semaphore(0)
        for _ in range(responses):
            await self._counted.acquire()

    async def unary(
        self, protocol: str, models: Sequence[str], send: Send, prefix: str = ""
    ) -> None:
        """Request ``models`` in turn until the load stops."""
        codec: Codec[Any, Any] = plugins()[protocol].create({})
        while not self.over.is_set():
            for model in models:
                response = await send(build_wire_request(protocol, model, prefix))
                answer = codec.parse_response(
                    response, request_message(model), DEFAULT_LIMITS, described(model)
                )
                assert isinstance(answer, InferResponse)
                assert np.array_equal(answer.outputs[0].numpy(), VALUES), (protocol, model)
                self.count(protocol)
                await asyncio.sleep(0)

    async def streams(self, channel: Any, models: Sequence[str]) -> None:
        """Request streams of twenty responses over V2 gRPC. All responses must arrive."""
        while not self.over.is_set():
            for model in models:
                call = channel.stream_stream(STREAM)()
                await call.write(streamed(model, 20, 5))
                await call.done_writing()
                assert await stream_values(call) == list(range(20))
                self.count("v2-grpc stream")

    async def events(self, address: str, models: Sequence[str]) -> None:
        """Request streams of twenty server-sent events over HTTP. All events must arrive."""
        connection = self._connection(address)
        body = json.dumps({"IN": list(range(20)), "DELAY": [5] * 20}).encode()
        while not self.over.is_set():
            for model in models:
                path = f"/v2/models/{model}/generate_stream"
                answer = await connection.send_request(HttpRequest("POST", path, body=[body]))
                lines = bytes(join_parts(answer.body)).decode().split("\n\n")
                items = [json.loads(line[6:])["OUT"] for line in lines if line.startswith("data: ")]
                assert items == list(range(20)), (answer.status, lines[:3])
                self.count("v2-rest stream")

    @asynccontextmanager
    async def applied(
        self, addresses: Mapping[str, str], models: Sequence[str], repeats: Sequence[str]
    ) -> AsyncIterator[None]:
        """Apply load while the block runs, and fail if a client fails. ``addresses`` has ``http``,
        ``grpc`` and ``frames``, which is a raw socket for the first model."""
        async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
            http, frames = addresses["http"], addresses["frames"]

            def unary(wire: RpcRequest) -> Any:
                return call_unary(channel, wire)

            clients = [
                self.unary("v2-rest", models, self._connection(http).send_request),
                self.unary("trtis-http", models, self._connection(http).send_request),
                self.unary("graphpipe", models, self._connection(http).send_request, "/graphpipe/"),
                self.unary("graphpipe", models[:1], self._connection(frames).frame),
                self.unary("v2-grpc", models, unary),
                self.unary("trtis-grpc", models, unary),
                self.streams(channel, repeats),
                self.events(http, repeats),
            ]
            try:
                async with asyncio.TaskGroup() as group:
                    for each in clients:
                        group.create_task(each)
                    yield
                    self.over.set()
            finally:
                for each in self.connections:
                    await each.close()


async def call_unary(channel: Any, wire: RpcRequest) -> RpcResponse:
    try:
        message = await channel.unary_unary(wire.method)(bytes(join_parts(wire.message)))
    except grpc.aio.AioRpcError as error:
        return RpcResponse((), error.code().value[0], error.details() or "")
    return RpcResponse((message,))


def streamed(model: str, count: int, delay: int) -> bytes:
    """Return the message that requests a stream of ``count`` responses over V2 gRPC."""
    codec: Any = plugins()["v2-grpc"].create({})
    return bytes(
        join_parts(codec.build_stream_request(repeating(model, count, delay), GENERIC).message)
    )


async def stream_values(call: Any, limit: int | None = None) -> list[int]:
    codec: Any = plugins()["v2-grpc"].create({})
    values: list[int] = []
    with contextlib.suppress(StopAsyncIteration):
        while limit is None or len(values) < limit:
            message = await call.read()
            if message is grpc.aio.EOF:
                break
            answer = codec.parse_stream_response(
                RpcResponse((message,)), InferRequest("m"), DEFAULT_LIMITS
            )
            if answer is not None and answer.outputs:
                values.append(int(answer.outputs[0].numpy()[0]))
    return values
