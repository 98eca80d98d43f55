"""Tests that faults of requests, or of the gateway's own host, do not eject an endpoint, and that a
dead server is ejected."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from faults.replicas import Replica, gateway, replicas
from faults.test_bursts_of_errors import burst
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelReadyRequest, Operation
from infergate.core.request_context import RequestContext
from infergate.core.request_record import RequestRecord
from waiting import until

LOCAL = "127.0.0.1"
MAX_LINE = 8190
"""The maximum length of a header line that aiohttp and Triton accept by default."""
POISON = "x-poison"


class ClosingProxy:
    """A proxy in front of a replica. It closes the connection if a request has a long line or
    POISON."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, LOCAL, 0, limit=1 << 20)
        return f"http://{LOCAL}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in tuple(self._tasks):
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        upstream_reader, upstream_writer = await asyncio.open_connection(LOCAL, self._replica.http)
        responses = asyncio.ensure_future(self._copy(upstream_reader, writer))
        try:
            while data := await reader.read(1 << 20):
                if POISON.encode() in data or max(map(len, data.split(b"\r\n"))) > MAX_LINE:
                    self.closed += 1
                    break
                upstream_writer.write(data)
        finally:
            responses.cancel()
            upstream_writer.close()
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                writer.write(data)
            writer.close()


@asynccontextmanager
async def closing_proxies(
    *backends: Replica,
) -> AsyncIterator[tuple[list[ClosingProxy], list[str]]]:
    created = [ClosingProxy(each) for each in backends]
    urls = [await each.start() for each in created]
    try:
        yield created, urls
    finally:
        for each in created:
            await each.stop()


NO_CHECKS = {"checks": "never", "timeout": "500ms"}


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_requests_that_break_connections_eject_no_endpoint(engine: str) -> None:
    async with (
        replicas(LOCAL, LOCAL) as servers,
        closing_proxies(*servers) as (proxies, urls),
        gateway("http", engine, urls, health=NO_CHECKS, forward_headers=("x-*",)) as load,
    ):
        for _ in range(40):
            with pytest.raises(GatewayError) as caught:
                await load.send_request(**{POISON: "1"})
            assert caught.value.kind is Kind.BACKEND_GARBAGE
        assert sum(each.closed for each in proxies) == 40
        async with load.callers(2):
            await load.wait_for_responses(20)
        assert not load.failed
        stats = load.stats()
        assert [each.ejections for each in stats] == [0, 0]
        assert sum(each.failed for each in stats) == 40
        assert await load.metric("infergate_endpoint_ejections_total", 0) == 0


async def test_a_dead_server_is_ejected_by_broken_requests() -> None:
    """A broken connection may be the fault of the request, so a health check decides."""
    async with (
        replicas(LOCAL, LOCAL) as servers,
        closing_proxies(*servers) as (proxies, urls),
        gateway(
            "http",
            "own",
            urls,
            health=NO_CHECKS,
            forward_headers=("x-*",),
            outliers={"base_ejection_time": "100s"},
        ) as load,
    ):
        for each in servers:
            each.backend.seconds = 0.3
        async with load.callers(16):
            await load.wait_for_responses(16)
            await until(lambda: load.stats()[1].active > 5, "many requests are in progress")
            await proxies[1].stop()
            await until(lambda: load.stats()[1].ejected == 1, "the endpoint is ejected")
            await load.wait_for_responses(16)
        assert await load.metric("infergate_endpoint_ejections_total", 1) == 1
        assert load.stats()[0].ejections == 0


async def test_a_never_served_model_ejects_no_endpoint() -> None:
    """A client that waits until a served model is ready ejects no endpoint either."""
    async with (
        replicas(LOCAL, LOCAL) as servers,
        gateway("grpc", "own", [each.url("grpc") for each in servers], health=NO_CHECKS) as load,
    ):

        async def ejections_after(times: int, operation: Operation | None = None) -> int:
            gateway_core = load.gateway.gateway
            async with burst(servers[0]), burst(servers[1]):
                for _ in range(times):
                    context = RequestContext("test", record=RequestRecord(operation="model_ready"))
                    request = (
                        gateway_core.perform(operation, context)
                        if operation
                        else load.send_request()
                    )
                    with pytest.raises(GatewayError, match="the disk is full"):
                        await request
            return sum(each.ejections for each in load.stats())

        assert await ejections_after(40) == 0
        await load.send_request()
        assert await ejections_after(40, ModelReadyRequest("simple")) == 0
        assert await ejections_after(20) == 1
        ejections = [
            await load.metric("infergate_endpoint_ejections_total", position) for position in (0, 1)
        ]
        assert sorted(ejections) == [0, 1]


@pytest.mark.parametrize("name", ["baggage", "tracestate", "traceparent"])
async def test_long_trace_headers_close_no_connection(name: str) -> None:
    """The gateway shortens such headers. Twelve such requests once ejected a healthy server."""
    async with (
        replicas(LOCAL, LOCAL) as servers,
        closing_proxies(*servers) as (proxies, urls),
        gateway("http", "own", urls, health=NO_CHECKS) as load,
    ):
        for size in (8_000, 9_000):
            for value in ("k=" + "v" * size, ",".join(["k=v"] * (size // 4))):
                await load.send_request(**{name: value})
        with pytest.raises(GatewayError, match=r"headers for the backend take .* the limit is"):
            await load.send_request(**{"x-request-id": "r" * 9_000})
        assert not any(each.closed for each in proxies)
        assert not any(each.failed for each in load.stats())
        assert await load.metric("infergate_endpoint_ejections_total", 0) == 0


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_local_resource_shortage_ejects_no_endpoint(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async with (
        replicas(LOCAL, LOCAL) as servers,
        gateway(
            transport, "own", [each.url(transport) for each in servers], health=NO_CHECKS
        ) as load,
    ):
        with monkeypatch.context() as patched:
            for module in ("client.pool", "grpc.client"):
                patched.setattr(f"infergate.transport.{module}.open_connection", exhausted)
            for _ in range(20):
                with pytest.raises(GatewayError, match="could not be reached"):
                    await load.send_request()
        await load.send_request()
        assert await load.metric("infergate_endpoint_ejections_total", 0) == 0
        assert not any(each.ejections for each in load.stats())
