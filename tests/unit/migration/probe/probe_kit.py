"""Kit for tests of the probe: a gateway with embedded models, servers with scripted responses, and
findings without a server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from infergate.config.schema import Config
from infergate.config.values import Url
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.migration.probe.findings import (
    DetectedProtocol,
    ProbedModel,
    ProbedServer,
    ProbeFindings,
)
from infergate.migration.probe.options import ProbeOptions
from infergate.migration.probe.prober import Prober
from infergate.migration.probe.targets import parse_target
from infergate.runtime.assemble import assemble
from tls_kit import Authority

FREE_PORT: Final = {"address": "127.0.0.1:0"}
LISTENERS: Final = {
    "http": FREE_PORT,
    "grpc": FREE_PORT,
    "admin": FREE_PORT,
    "graphpipe": (
        {**FREE_PORT, "model": "identity"},
        {**FREE_PORT, "model": "identity", "framing": "size-prefixed"},
    ),
    "additional": {"v1": {**FREE_PORT, "protocols": ("kserve-v1",)}},
}


@asynccontextmanager
async def embedded_models(**sections: Any) -> AsyncGenerator[Mapping[str, str], None]:
    """Serve the embedded models in all protocols. Yield the address of each listener."""
    config = Config.model_validate(
        {
            "log": {"access": False},
            "helpers": 0,
            "listeners": LISTENERS,
            "backends": {"demo": {"protocol": "builtin"}},
            "routes": ({"model": "*", "backend": "demo"},),
            **sections,
        }
    )
    running = assemble(config)
    await running.start()
    try:
        yield {name: str(server.address) for name, server in running.listeners.items()}
    finally:
        await running.stop(0)


@asynccontextmanager
async def scripted_server(
    respond: Callable[[str], bytes | None], tls: ssl.SSLContext | None = None
) -> AsyncGenerator[str, None]:
    """Run an HTTP server that closes each connection after one response, or if it does not receive
    a line. ``respond`` receives the request line, and returns the response or None for silence."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            line, is_line, _ = (await reader.read(65_536)).partition(b"\n")
            response = respond(line.decode(errors="replace").strip()) if is_line else b""
            if response is None:
                await reader.read()
            else:
                writer.write(response)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        for _ in range(20):  # asyncio (3.11) leaks connections accepted while their server closes
            await asyncio.sleep(0)
        server.close()


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def http_response(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def probe(*addresses: str, timeout: float = 60.0, **options: Any) -> ProbeFindings:
    """Probe the addresses. The default timeout is long enough for a busy machine."""
    targets = [parse_target(text) for text in addresses]
    return await Prober(ProbeOptions(timeout, **options)).probe(targets)


# ---- findings, without servers


def tensor(name: str, datatype: str = "FP32", *shape: int) -> TensorMetadata:
    return TensorMetadata(name, datatype, shape)


def model(
    name: str,
    inputs: tuple[TensorMetadata, ...] = (tensor("x", "FP32", -1, 3),),
    outputs: tuple[TensorMetadata, ...] = (tensor("y", "FP32", -1),),
    source: str = "v2-grpc",
    **metadata: Any,
) -> ProbedModel:
    described = ModelMetadata(name, inputs=inputs, outputs=outputs, **metadata)
    return ProbedModel(name, "READY", described, source)


def server(
    *models: ProbedModel,
    protocol: str = "v2-grpc",
    url: str = "grpc://10.0.0.7:8001",
    name: str = "triton",
) -> ProbedServer:
    scheme, _, address = url.partition("://")
    host, _, port = address.partition(":")
    states = {item.name: item.state for item in models}
    item = DetectedProtocol(protocol, Url(scheme, host, int(port)), name, "2.51.0", states)
    return ProbedServer(name, "2.51.0", [item], models)
