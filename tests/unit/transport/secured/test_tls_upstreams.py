"""TLS to backends: configured authorities, server names and client certificates."""

import ssl
from pathlib import Path

import pytest
from test_tls_listeners import (
    LIMITS,
    Harness,
    authority,
    other_authority,
    pair,
    requiring,
    serve,
)
from transport_kit import ENGINES, OWN, Engine

from infergate.core.errors import GatewayError, Kind
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.tls.certificates import CertificateError
from infergate.transport.tls.client_context import ClientTlsContext
from tls_kit import Authority, Pair, client_tls, replace_files

__all__ = ["authority", "other_authority", "pair"]


class Client:
    def __init__(self, kind: str, engine: Engine, tls: ClientTls | None) -> None:
        self._is_http = kind == "http"
        create = engine.http_upstream if self._is_http else engine.upstream
        self.upstream = create(LIMITS, tls)

    async def send_request(self, endpoint: Endpoint) -> bytes:
        if self._is_http:
            http_response = await self.upstream.exchange(HttpRequest("POST", "/"), endpoint, 10)  # type: ignore[arg-type]
            return bytes(join_parts(http_response.body))  # type: ignore[union-attr]
        response = await self.upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), endpoint, 10)  # type: ignore[arg-type]
        return bytes(join_parts(response.message))  # type: ignore[union-attr]

    async def assert_refused(self, harness: Harness) -> None:
        with pytest.raises(GatewayError) as caught:
            await self.send_request(harness.endpoint)
        assert caught.value.kind in {Kind.CONNECT, Kind.BACKEND_GARBAGE}


ALL_CLIENTS = pytest.mark.parametrize(
    ("kind", "engine"),
    [(kind, engine) for kind in ("http", "grpc") for engine in ENGINES],
    ids=str,
)


@ALL_CLIENTS
async def test_only_servers_of_the_configured_authority_are_trusted(
    kind: str, engine: Engine, authority: Authority, other_authority: Authority, pair: Pair
) -> None:
    async with serve(kind, pair, engine) as harness:
        for tls, trusted in ((client_tls(authority), True), (client_tls(other_authority), False)):
            client = Client(kind, engine, tls)
            if trusted:
                assert await client.send_request(harness.endpoint)
            else:
                await client.assert_refused(harness)
            await client.upstream.close()


@ALL_CLIENTS
async def test_the_server_name_is_checked(kind: str, engine: Engine, authority: Authority) -> None:
    certificate = authority.issue("back.example")
    async with serve(kind, certificate, engine) as harness:
        for name, is_accepted in (("back.example", True), (None, False), ("other.example", False)):
            client = Client(kind, engine, ClientTls(authority.file, name))
            if is_accepted:
                assert await client.send_request(harness.endpoint)
                resolved = harness.endpoint._replace(host="x", address="127.0.0.1")
                assert await client.send_request(resolved)
            else:
                await client.assert_refused(harness)
            await client.upstream.close()


@ALL_CLIENTS
async def test_the_configured_client_certificate_is_sent(
    kind: str, engine: Engine, authority: Authority, other_authority: Authority, pair: Pair
) -> None:
    async with serve(kind, pair, engine, **requiring(authority)) as harness:
        for certificate, is_accepted in (
            (authority.issue("a"), True),
            (None, False),
            (other_authority.issue("a"), False),
        ):
            client = Client(kind, engine, client_tls(authority, certificate))
            if is_accepted:
                assert await client.send_request(harness.endpoint)
            else:
                await client.assert_refused(harness)
            await client.upstream.close()
        assert [call.peer_identity for call in harness.calls] == [("a",)]


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_renewed_client_certificate_is_used(
    kind: str,
    authority: Authority,
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("infergate.transport.tls.file_watch._CHECK_INTERVAL", 0.0)
    identity = authority.issue("before")
    client = Client(kind, OWN, client_tls(authority, identity))
    for name in ("before", "after", "after"):
        async with serve(kind, pair, **requiring(authority)) as harness:
            assert await client.send_request(harness.endpoint)
            assert harness.calls[0].peer_identity == (name,)
        if name == "before":
            replace_files(authority.issue("after"), identity)
        else:
            identity.key.write_text("broken")
    assert "keeping the previous certificates" in caplog.text
    await client.upstream.close()


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_without_verification_any_certificate_is_accepted(
    kind: str, other_authority: Authority
) -> None:
    async with serve(kind, other_authority.issue("other.example")) as harness:
        client = Client(kind, OWN, ClientTls(verify=False))
        assert await client.send_request(harness.endpoint)
        await client.upstream.close()


def test_client_contexts_check_files_and_servers(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        ClientTlsContext(ClientTls(tmp_path / "none.pem"))
    context = ClientTlsContext(ClientTls(authority.file)).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
