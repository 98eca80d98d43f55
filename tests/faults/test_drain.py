"""Tests SIGTERM while streams are open, and a second SIGTERM. The process ends, so the common
checks run before the end: connected clients are served, memory is limited, and no descriptor
remains open after the last stream."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.frames import FRAME, error_in, raw_listener
from faults.load import STREAM, Connection, stream_values, streamed
from faults.peer import Client
from faults.watch import MIB, alive, checks, descriptors, limited_growth, logged_bugs, sample, until
from infergate.codecs.protos import SCHEMA
from infergate.core.wire import HttpRequest, join_parts

STREAMS = 50
CONFIG = """
drain: {{delay: {delay}, timeout: {timeout}}}
helpers: 0
backends: {{ours: {{protocol: builtin}}}}
routes: [{{model: "*", backend: ours}}]
"""
HEALTH = "/grpc.health.v1.Health/Check"
Status = SCHEMA.message_class("grpc.health.v1.HealthCheckResponse")


@dataclass
class Harness:
    gateway: Infergate
    frames: str

    def terminate(self) -> None:
        os.kill(self.gateway.pid, signal.SIGTERM)

    def assert_stopped(self) -> None:
        until(lambda: not alive(self.gateway), "the process ends")
        assert "stopped" in self.gateway.log.read_text()
        assert logged_bugs(self.gateway) == ""


@contextmanager
def started_harness(engine: str, delay: str, timeout: str) -> Iterator[Harness]:
    listener, raw = raw_listener()
    config = CONFIG.format(delay=delay, timeout=timeout)
    with started_infergate(config, LISTENERS + listener, engine) as gateway:
        yield Harness(gateway, raw)


async def statuses(harness: Harness, channel: grpc.aio.Channel) -> list[int]:
    """Return the results of the readiness requests of each protocol."""
    results = []
    for address, path in (
        (harness.gateway.http, "/v2/health/ready"),
        (harness.gateway.http, "/api/health/ready"),
        (harness.gateway.admin, "/readyz"),
    ):
        connection = Connection(address)
        response = await connection.send_request(HttpRequest("GET", path))
        results.append(response.status)
        await connection.close()
    results.append(Status.FromString(await channel.unary_unary(HEALTH)(b"")).status)
    ready = await channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"")
    return [*results, int(ready == b"\x08\x01")]


def logged(gateway: Infergate, text: str) -> bool:
    return text in gateway.log.read_text()


def scraped(scraping: Client, name: str) -> float:
    """Scrape a metric on an existing connection, because the admin listener closes last but accepts
    no new connections."""
    scraping.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return sample(scraping.answer().body.decode(), name)


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_every_message_of_fifty_streams_arrives(engine: str) -> None:
    with (
        started_harness(engine, "300ms", "20s") as harness,
        Client(harness.frames) as raw,
        Client(harness.gateway.admin) as scraping,
        checks.watching(),
    ):
        assert scraped(scraping, "infergate_open_streams") == 0
        held = descriptors(harness.gateway.pid)
        with limited_growth(harness.gateway.pid, 64 * MIB):
            async with asyncio.timeout(60):
                await check_drain(harness, raw, scraping)
            until(lambda: scraped(scraping, "infergate_open_streams") == 0, "all streams ended")
            assert scraped(scraping, "infergate_draining") == 1
            until(lambda: descriptors(harness.gateway.pid) <= held, "the descriptors are closed")
        raw.send(FRAME[6:])
        assert error_in(raw) == ""
        assert raw.read_to_end() == b""
        harness.assert_stopped()


async def check_drain(harness: Harness, raw: Client, scraping: Client) -> None:
    """Drain the gateway, and check that all HTTP and gRPC requests are completed. On ``raw``, send
    only the first six bytes of a request."""
    async with grpc.aio.insecure_channel(harness.gateway.grpc) as channel:
        assert await statuses(harness, channel) == [200, 200, 200, 1, 1]
        idle, busy = Connection(harness.gateway.http), Connection(harness.gateway.http)
        live = HttpRequest("GET", "/v2/health/live")
        for each in (idle, busy):
            assert (await each.send_request(live)).status == 200
        calls = [channel.stream_stream(STREAM)() for _ in range(STREAMS)]
        for call in calls:  # the drain may begin before the second request is read
            await call.write(streamed("repeat", 40, 25))
            await call.write(streamed("repeat", 2, 1))
        await asyncio.gather(*(stream_values(call, 1) for call in calls))
        assert scraped(scraping, "infergate_open_streams") == STREAMS
        body = json.dumps({"IN": list(range(40)), "DELAY": [25] * 40}).encode()
        events = asyncio.create_task(
            busy.send_request(HttpRequest("POST", "/v2/models/repeat/generate_stream", body=[body]))
        )
        raw.send(FRAME[:6])
        harness.terminate()
        await asyncio.to_thread(
            until, lambda: logged(harness.gateway, "draining"), "the drain begins"
        )
        readiness = await statuses(harness, channel)
        assert readiness == [400, 400, 503, 2, 0], (
            "the gateway is ready, or does not serve requests"
        )
        # The idle connection is closed after the delay, and new connections are refused.
        assert await idle.is_closed()
        await idle.close()
        with pytest.raises(ConnectionRefusedError):
            await Connection(harness.gateway.http).send_request(live)
        received = await asyncio.gather(*(stream_values(call) for call in calls))
        assert [sorted(each) for each in received] == [
            sorted([*range(40), 0, 1])[1:] for _ in calls
        ]
        for call in calls:
            assert await call.code() is grpc.StatusCode.OK
        sent_over_http = bytes(join_parts((await events).body)).count(b"data: ")
        assert sent_over_http == 40
        await busy.close()


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_a_second_signal_exits_immediately(engine: str) -> None:
    with started_harness(engine, "0s", "60s") as harness:
        async with asyncio.timeout(60), grpc.aio.insecure_channel(harness.gateway.grpc) as channel:
            call = channel.stream_stream(STREAM)()
            await call.write(streamed("repeat", 2, 30_000))
            await call.write(streamed("repeat", 1, 0))
            assert await stream_values(call, 1) == [0]
            harness.terminate()
            await asyncio.to_thread(
                until, lambda: logged(harness.gateway, "draining"), "the drain begins"
            )
            assert alive(harness.gateway)
            began = time.monotonic()
            harness.terminate()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream_values(call)
            # grpcio may reset the calls before it closes the connection.
            reset = {grpc.StatusCode.CANCELLED} if engine == "compat" else set()
            assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, *reset}
        harness.assert_stopped()
        assert time.monotonic() - began < 10
