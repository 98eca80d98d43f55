"""TLS and connections of listeners when the configuration is replaced."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from infergate.config.load import parse
from infergate.runtime.running import ConfigRejectedError, RunningGateway
from running_gateways import serving
from tls_kit import Authority, Pair
from waiting import until

CONFIG = """
helpers: 0
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
log: {access: false}
"""


def config_text(pair: Pair | None, connections: int, port: int) -> str:
    tls = f"{{certificate: {pair.certificate}, key: {pair.key}}}" if pair else "null"
    return (
        f'listeners: {{grpc: null, admin: null, http: {{address: "127.0.0.1:{port}", tls: {tls}}}}}'
        f"\nlimits: {{connections: {connections}}}\n{CONFIG}"
    )


async def connect(
    running: RunningGateway, authority: Authority
) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cafile=authority.file)
    port = running.listeners["http"].address.port
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    return writer.get_extra_info("ssl_object").getpeercert()["serialNumber"], reader, writer


async def is_accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    return b"200 OK" in await reader.readuntil(b"\r\n\r\n")


async def test_certificates_and_connection_limits_are_reloaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    first, second = authority.server(), authority.server()
    file = str(tmp_path / "routes.yaml")
    async with serving(parse(config_text(first, 10, 0), file, {})) as running:
        before, *streams = await connect(running, authority)
        await running.reload(parse(config_text(second, 1, 0), file, {}))
        assert await is_accepted(*streams), "open connections are kept"
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await connect(running, authority)  # the new limit is reached
        streams[1].close()
        await until(lambda: not next(iter(running.gates)).connections)
        after, *renewed = await connect(running, authority)
        assert after != before
        assert await is_accepted(*renewed)
        with pytest.raises(ConfigRejectedError, match="changing TLS on"):
            await running.reload(parse(config_text(None, 1, 0), file, {}))
        assert await is_accepted(*renewed)
        config = parse(config_text(first, 1, 0), file, {})
        first.key.unlink()  # after the configuration was parsed, and before it is applied
        with pytest.raises(ConfigRejectedError, match="cannot be read"):
            await running.reload(config)
        assert await is_accepted(*renewed)
        renewed[1].close()
