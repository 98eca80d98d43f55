"""Streams that live for hours do not hold the drain, and take no request's place."""

import asyncio

import grpc
import grpc.aio

from infergate.codecs.protos import SCHEMA
from infergate.config.load import parse
from infergate.runtime.assemble import assemble

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
Status = SCHEMA.message("grpc.health.v1.HealthCheckResponse")


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
        # Four streams are open, and one request is all that may be served at once.
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert Status.FromString(await check(b"")).status == 1
        stopping = asyncio.ensure_future(running.stop(3600))
        for watch in watches:
            assert Status.FromString(await watch.read()).status == 2
        for stream in (*watches, reflection):
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
        await stopping


async def test_draining_fails_every_readiness() -> None:
    running = assemble(parse(CONFIG, "routes.yaml", {}))
    assert await running.gateway.readiness.ready()
    running.drain()
    assert running.gateway.readiness.draining
    assert not await running.gateway.readiness.ready()
    await running.stop(0)
