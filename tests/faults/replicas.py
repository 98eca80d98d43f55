"""Servers of the same models that stop and restart, and a gateway in front of them. All run in this
process, on real sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.watch import MIB, checks, descriptors, limited_growth, sample
from infergate.backends.base import Backend
from infergate.backends.builtin import BuiltinBackend
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.stats import EndpointStats
from infergate.core.tensor import tensor_from_array
from infergate.runtime.assemble import RunningGateway, assemble
from waiting import until

QUIET: dict[str, Any] = {"log": {"access": False}, "helpers": 0}
QUICK = {"interval": "50ms", "timeout": "500ms"}
"""Settings of health checks, with a shorter interval than the default of five seconds."""


class Slowed(BuiltinBackend):
    """Embedded models that delay each inference by ``seconds``, and count the ``inferences``."""

    seconds = 0.0
    inferences = 0

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        if isinstance(operation, InferRequest):
            self.inferences += 1
            await asyncio.sleep(self.seconds)
        return await super().perform(operation, context)


@dataclass
class Replica:
    """An instance of infergate with the embedded models, on one address per transport."""

    host: str
    http: int = 0
    grpc: int = 0
    backend: Slowed = field(default_factory=lambda: Slowed("demo", timeout=30.0))
    running: RunningGateway | None = None

    async def start(self) -> None:
        addresses = {name: f"{self.host}:{getattr(self, name)}" for name in ("http", "grpc")}
        config = Config.model_validate(
            {
                **QUIET,
                "listeners": {k: {"address": v} for k, v in addresses.items()} | {"admin": None},
                "backends": {"demo": {"protocol": "builtin"}},
                "routes": ({"model": "*", "backend": "demo"},),
            }
        )
        self.running = assemble(config, lambda *_: self.backend)
        await self.running.start()
        self.http = self.running.listeners["http"].address.port
        self.grpc = self.running.listeners["grpc"].address.port

    async def kill(self) -> None:
        """Stop immediately, and abort requests in progress."""
        running, self.running = self.running, None
        if running is not None:
            await running.stop(0)

    def url(self, transport: str) -> str:
        return f"{transport}://{self.host}:{getattr(self, transport)}"

    def connections(self) -> int:
        """Return the number of TCP connections to the server. grpcio connects over IPv6."""
        address = socket.inet_aton(self.host)[::-1].hex().upper()
        ports = (self.http, self.grpc)
        ends = tuple(f"{address}:{port:04X}" for port in ports if port)
        count = 0
        for table in ("tcp", "tcp6"):
            rows = Path("/proc/self/net", table).read_text().splitlines()[1:]
            states = (row.split()[2:4] for row in rows)
            count += sum(1 for remote, state in states if remote.endswith(ends) and state == "01")
        return count


@asynccontextmanager
async def replicas(*hosts: str, same_ports: bool = False) -> AsyncIterator[list[Replica]]:
    """Run a server at each of ``hosts``. With ``same_ports``, the servers have the same ports, like
    the pods of a service."""
    created = [Replica(host) for host in hosts]
    try:
        for each in created:
            if same_ports:
                each.http, each.grpc = created[0].http, created[0].grpc
            await each.start()
        yield created
    finally:
        for each in created:
            await each.kill()


@dataclass
class Load:
    gateway: RunningGateway
    backend: Backend
    ok: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    _stop: bool = False
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_request(self, **headers: str) -> None:
        """Send an inference. Raises GatewayError."""
        context = RequestContext("test", headers=headers)
        inputs = tuple(
            tensor_from_array(name, Datatype.INT32, np.arange(16, dtype=np.int32).reshape(1, 16))
            for name in ("INPUT0", "INPUT1")
        )
        gateway = self.gateway.gateway
        request = InferRequest("simple", inputs=inputs)
        response = await gateway.infer(request, gateway.bind("simple", "", context), context)
        assert isinstance(response, InferResponse)

    async def _others(self) -> None:
        """Check that requests that need no endpoint succeed, whatever happens to the endpoints."""
        gateway = self.gateway.gateway
        inputs = (tensor_from_array("INPUT0", Datatype.INT32, np.zeros(1, np.int32)),)
        while not self._over.is_set():
            context = RequestContext("test")
            request = InferRequest("identity", inputs=inputs)
            response = await gateway.infer(request, gateway.bind("identity", "", context), context)
            assert isinstance(response, InferResponse)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 0.1)

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Check that all requests of another client, which sends requests continuously, succeed."""
        pending = asyncio.ensure_future(self._others())
        try:
            yield
        finally:
            self._over.set()
            await pending

    async def keep_requesting(self) -> None:
        while not self._stop:
            began = time.monotonic()
            try:
                await self.send_request()
                self.ok += 1
            except GatewayError as error:
                self.failed[error.kind.name] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.002)

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[None]:
        """Run ``count`` clients that send requests continuously."""
        self._stop = False
        pending = [asyncio.ensure_future(self.keep_requesting()) for _ in range(count)]
        try:
            yield
        finally:
            self._stop = True
            await asyncio.gather(*pending)

    async def wait_for_responses(self, count: int) -> None:
        """Wait for ``count`` more responses."""
        target = self.ok + count
        await until(lambda: self.ok >= target, f"{count} more responses")

    def stats(self) -> list[EndpointStats]:
        remote: Any = self.backend
        return list(remote.endpoint_stats())

    async def metric(self, name: str, position: int, **labels: str) -> float:
        """Scrape a metric of the endpoint at ``position``."""
        admin = self.gateway.listeners["admin"].address
        reader, writer = await asyncio.open_connection(admin.host, admin.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        url = self.stats()[position].endpoint
        assert f'{name}{{backend="b",endpoint="{url}"' in text, text
        return sample(text, name, endpoint=url, **labels)


@asynccontextmanager
async def gateway(
    transport: str, engine: str, endpoints: list[Any], **backend: Any
) -> AsyncIterator[Load]:
    protocol = {"http": "v2-rest", "grpc": "v2-grpc"}[transport]
    settings = {"health": QUICK, "profile": "infergate"} | backend
    config = Config.model_validate(
        {
            **QUIET,
            "engine": engine,
            "readiness": "strict",  # "b" decides, because the embedded backend is always ready
            "listeners": {
                "http": {"address": "127.0.0.1:0"},
                "grpc": None,
                "admin": {"address": "127.0.0.1:0"},
            },
            "backends": {
                "b": {"protocol": protocol, "endpoints": tuple(endpoints), **settings},
                "ours": {"protocol": "builtin"},
            },
            "routes": ({"model": "identity", "backend": "ours"}, {"model": "*", "backend": "b"}),
        }
    )
    async with as_before(engine):
        running = assemble(config)
        await running.start()
        try:
            load = Load(running, running.gateway.backends[0])
            async with load.beside_others():
                yield load
        finally:
            await running.stop(5)


GRPC_KEEPS = 8
"""Descriptors of two pollers that the gRPC library keeps for a while."""


@asynccontextmanager
async def as_before(engine: str, max_growth: int = 64 * MIB) -> AsyncIterator[None]:
    """Check that this process soon has no more descriptors and tasks than before the block, and
    that its memory grows by at most ``max_growth`` bytes."""
    held = descriptors(os.getpid()) + (GRPC_KEEPS if engine == "compat" else 0)
    tasks = len(asyncio.all_tasks())
    with checks.watching(), limited_growth(os.getpid(), max_growth):
        yield
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
    if engine == "compat":
        gc.collect()  # cancelled calls hold their channel until they are collected
    await until(lambda: descriptors(os.getpid()) <= held, f"descriptors are back to {held}")


class Names:
    """A fake resolver with the ``addresses`` of each name. ``requests`` counts lookups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.requests = 0
        real = socket.getaddrinfo

        def getaddrinfo(host: Any, port: Any, *args: Any, **more: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name not in self.addresses:
                return real(host, port, *args, **more)
            self.requests += 1
            addresses = self.addresses[name]
            if not addresses:
                raise socket.gaierror(socket.EAI_NONAME, "no such name")
            return [
                (
                    socket.AF_INET6 if ":" in each else socket.AF_INET,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (each, port),
                )
                for each in addresses
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
