"""The drain of a gateway: its readiness, open streams, and requests in progress."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from faults import h2
from faults.load import (
    STREAM,
    Connection,
    build_wire_request,
    call_unary,
    described,
    request_message,
    stream_values,
    streamed,
)
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.protos import SCHEMA
from infergate.codecs.registry import plugins
from infergate.config.load import parse
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, Operation
from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcResponse, join_parts
from infergate.runtime.assemble import assemble
from waiting import until

CONFIG = """
listeners:
  http: {address: "127.0.0.1:0"}
  grpc: {address: "127.0.0.1:0"}
  admin: {address: "127.0.0.1:0"}
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
limits: {in_flight: 1}
log: {access: false}
"""
PREFIXES = {"graphpipe": "/graphpipe/"}
SHUTTING_DOWN = "the gateway is shutting down"
Status = SCHEMA.message_class("grpc.health.v1.HealthCheckResponse")


async def test_watchers_and_reflection_end_when_the_drain_begins() -> None:
    running = assemble(parse(CONFIG, "routes.yaml", {}))
    await running.start()
    address = str(running.listeners["grpc"].address)
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(60):
        watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(3)]
        for watch in watches:
            assert Status.FromString(await watch.read()).status == 1
        path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        reflection = channel.stream_stream(path)()
        await reflection.write(b"")
        assert await reflection.read()
        # Four streams are open, and the limit is one request.
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert Status.FromString(await check(b"")).status == 1
        stopping = asyncio.ensure_future(running.stop(3600))
        for watch in watches:
            assert Status.FromString(await watch.read()).status == 2
        for stream in (*watches, reflection):
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
        await stopping


async def test_a_draining_gateway_is_not_ready() -> None:
    running = assemble(parse(CONFIG, "routes.yaml", {}))
    assert await running.gateway.readiness.is_ready()
    running.drain()
    assert running.gateway.readiness.is_draining
    assert not await running.gateway.readiness.is_ready()
    await running.stop(0)


class HangingBackend(BuiltinBackend):
    """Responds to no inference except streams of the model ``repeat``."""

    async def stream(
        self, operation: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        if operation.model != "repeat":
            await asyncio.Event().wait()
        async with aclosing(super().stream(operation, context)) as responses:
            async for response in responses:
                yield response

    async def perform(self, operation: Operation, context: RequestContext) -> Any:
        if isinstance(operation, InferRequest):
            await asyncio.Event().wait()
        return await super().perform(operation, context)


def error_text(protocol: str, wire: Any, model: str = "identity") -> str:
    codec: Any = plugins()[protocol].create({})
    with pytest.raises(GatewayError) as caught:
        codec.parse_response(wire, request_message(model), DEFAULT_LIMITS, described(model))
    return caught.value.public


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_requests_cut_off_by_the_drain_end_with_an_error(engine: str) -> None:
    graphpipe = '[{address: "127.0.0.1:0", model: identity, framing: size-prefixed}]'
    text = CONFIG.replace("admin:", f"graphpipe: {graphpipe}\n  admin:")
    text = text.replace("limits: {in_flight: 1}", f"engine: {engine}")
    running = assemble(parse(text, "routes.yaml", {}), lambda name, _: HangingBackend(name))
    await running.start()
    addresses = {name: str(server.address) for name, server in running.listeners.items()}
    http = [Connection(addresses["http"]) for _ in range(3)]
    raw = Connection(addresses["graphpipe[0]"])
    async with asyncio.timeout(30), grpc.aio.insecure_channel(addresses["grpc"]) as channel:
        http_protocols = ("v2-rest", "trtis-http", "graphpipe")
        requests: dict[str, Any] = {
            protocol: each.send_request(
                build_wire_request(protocol, "identity", PREFIXES.get(protocol, ""))
            )
            for protocol, each in zip(http_protocols, http, strict=True)
        }
        requests["frames"] = raw.frame(build_wire_request("graphpipe"))
        for protocol in ("v2-grpc", "trtis-grpc"):
            requests[protocol] = call_unary(channel, build_wire_request(protocol))
        pending = {name: asyncio.ensure_future(each) for name, each in requests.items()}
        stream = channel.stream_stream(STREAM)()
        await stream.write(streamed("repeat", 2, 60_000))
        await stream.write(streamed("repeat", 1, 0))
        trtis_stream = channel.stream_stream("/nvidia.inferenceserver.GRPCService/StreamInfer")()
        await trtis_stream.write(bytes(join_parts(build_wire_request("trtis-grpc").message)))
        assert await stream_values(stream, 1) == [0]
        await until(
            lambda: (
                sum(1 for each in running.listeners.values() for _ in each.active_requests()) >= 8
            )
        )
        await running.stop(0.01)
        responses = {name: await each for name, each in pending.items()}
        for protocol in ("v2-rest", "graphpipe"):
            assert responses[protocol].status == 503
            assert responses[protocol].headers["connection"] == "close"
        for name, response in responses.items():
            protocol = "graphpipe" if name == "frames" else name
            assert SHUTTING_DOWN in error_text(protocol, response), name
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream_values(stream)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            SHUTTING_DOWN,
        )
        message = await trtis_stream.read()
        assert SHUTTING_DOWN in error_text("trtis-grpc", RpcResponse((message,)))
        assert await trtis_stream.read() is grpc.aio.EOF
        metrics = await running._active.listeners["admin"].app.scrape("")
        outcomes = {
            line.partition('outcome="')[2].partition('"')[0]
            for line in b"".join(metrics.chunks).decode().splitlines()
            if line.startswith("infergate_requests_total{") and 'operation="infer"' in line
        }
        assert outcomes == {"overloaded"}
    for each in (*http, raw):
        await each.close()


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_requests_sent_on_a_stream_before_the_drain_are_served(engine: str) -> None:
    """Sixteen requests are served concurrently; the others are unread when the drain starts."""
    text = CONFIG.replace("limits: {in_flight: 1}", f"engine: {engine}")
    running = assemble(parse(text, "routes.yaml", {}))
    await running.start()
    address = str(running.listeners["grpc"].address)
    async with asyncio.timeout(30), grpc.aio.insecure_channel(address) as channel:
        stream = channel.stream_stream(STREAM)()
        for _ in range(60):
            await stream.write(streamed("repeat", 1, 100))
        assert await stream_values(stream, 1) == [0]
        stopping = asyncio.create_task(running.stop(20))
        assert len(await stream_values(stream)) == 59
        assert await stream.code() is grpc.StatusCode.OK
        await stopping


async def test_an_http2_connection_is_closed_with_two_goaways() -> None:
    """RFC 9113, 6.8: streams opened before the client received the GOAWAY are not lost."""
    running = assemble(parse(CONFIG.replace("limits: {in_flight: 1}", ""), "routes.yaml", {}))
    await running.start()
    address = running.listeners["grpc"].address
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(address.host, address.port)

        def send(number: int, method: str, body: bytes) -> None:
            block, data = h2.request_headers(method), h2.message(body)
            writer.write(h2.frame(h2.HEADERS, h2.END_HEADERS, number, block))
            writer.write(h2.frame(h2.DATA, h2.END_STREAM, number, data))

        async def next_frame(kind: int, stream: int, *, ended: bool = False) -> h2.Frame:
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                number = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                if (head[3], number) == (kind, stream) and (not ended or head[4] & h2.END_STREAM):
                    return h2.Frame(kind, head[4], number, payload)

        writer.write(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        send(1, STREAM, streamed("repeat", 5, 60))
        await next_frame(h2.DATA, 1)
        stopping = asyncio.create_task(running.stop(20))
        first = await next_frame(h2.GOAWAY, 0)
        assert int.from_bytes(first.payload[:4], "big") == 2**31 - 1
        ping = await next_frame(h2.PING, 0)
        send(3, "/inference.GRPCInferenceService/ServerLive", b"")
        response = await next_frame(h2.DATA, 3)
        assert response.payload.endswith(b"\x08\x01"), "the request is served"
        writer.write(h2.frame(h2.PING, h2.ACK, 0, ping.payload))
        second = await next_frame(h2.GOAWAY, 0)
        assert int.from_bytes(second.payload[:4], "big") == 3
        await next_frame(h2.HEADERS, 1, ended=True)
        assert await reader.read() == b""
        await stopping
        writer.close()
        await writer.wait_closed()
