"""Backends by TLS with an authority, a name and a certificate of their own."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

import pytest
from test_tls_listeners import (
    LIMITS,
    Site,
    authority,
    pair,
    served,
    stranger,
)
from transport_kit import ENGINES, Engine

from infergate.core.errors import GatewayError, Kind
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.tls.certificates import CertificateError
from infergate.transport.tls.client_context import ClientTlsContext
from tls_kit import Authority, Pair, of_client, put

__all__ = ["authority", "pair", "stranger"]


class Asking:
    """A client of one carrier."""

    def __init__(self, kind: str, engine: Engine, tls: ClientTls | None) -> None:
        self._is_http = kind == "http"
        made = engine.http_upstream if self._is_http else engine.upstream
        self.upstream = made(LIMITS, tls)

    async def ask(self, endpoint: Endpoint) -> bytes:
        if self._is_http:
            answer = await self.upstream.exchange(HttpRequest("POST", "/"), endpoint, 10)  # type: ignore[arg-type]
            return bytes(join_parts(answer.body))  # type: ignore[union-attr]
        told = await self.upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), endpoint, 10)  # type: ignore[arg-type]
        return bytes(join_parts(told.message))  # type: ignore[union-attr]

    async def is_refused(self, site: Site) -> bool:
        with pytest.raises(GatewayError) as caught:
            await self.ask(site.endpoint)
        return caught.value.kind in {Kind.CONNECT, Kind.BACKEND_GARBAGE}


WHO = pytest.mark.parametrize(
    ("kind", "engine"),
    [(kind, engine) for kind in ("http", "grpc") for engine in ENGINES],
    ids=str,
)


@WHO
async def test_an_authority_of_its_own(
    kind: str, engine: Engine, authority: Authority, stranger: Authority, pair: Pair
) -> None:
    async with served(kind, pair, engine) as site:
        for tls, trusted in ((of_client(authority), True), (of_client(stranger), False)):
            asking = Asking(kind, engine, tls)
            if trusted:
                assert await asking.ask(site.endpoint)
            else:
                assert await asking.is_refused(site)
            await asking.upstream.close()


@WHO
async def test_a_name_that_is_not_its_hosts(
    kind: str, engine: Engine, authority: Authority
) -> None:
    hidden = authority.issue("back.example")
    async with served(kind, hidden, engine) as site:
        for name, fits in (("back.example", True), (None, False), ("other.example", False)):
            asking = Asking(kind, engine, ClientTls(authority.file, name))
            if fits:
                assert await asking.ask(site.endpoint)
                looked_up = dataclasses.replace(site.endpoint, host="x", address="127.0.0.1")
                assert await asking.ask(looked_up)
            else:
                assert await asking.is_refused(site)
            await asking.upstream.close()


@WHO
async def test_a_certificate_is_shown(
    kind: str, engine: Engine, authority: Authority, stranger: Authority, pair: Pair
) -> None:
    async with served(
        kind,
        pair,
        engine,
        client_certificates="required",
        client_ca=authority.file,
    ) as site:
        for shown, fits in (
            (authority.issue("a"), True),
            (None, False),
            (stranger.issue("a"), False),
        ):
            asking = Asking(kind, engine, of_client(authority, shown))
            if fits:
                assert await asking.ask(site.endpoint)
            else:
                assert await asking.is_refused(site)
            await asking.upstream.close()
        assert [call.peer_identity for call in site.calls] == [("a",)]


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_certificate_that_is_renewed_is_shown(
    kind: str,
    authority: Authority,
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("infergate.transport.tls.file_watch._CHECK_INTERVAL", 0.0)
    ours = authority.issue("before")
    asking = Asking(kind, ENGINES[1], of_client(authority, ours))
    asked = {"client_certificates": "required", "client_ca": authority.file}
    for name in ("before", "after", "after"):
        async with served(kind, pair, **asked) as site:
            assert await asking.ask(site.endpoint)
            assert site.calls[0].peer_identity == (name,)
        if name == "before":
            put(authority.issue("after"), ours)
        else:
            ours.key.write_text("broken")
    assert "keeping the previous certificates" in caplog.text
    await asking.upstream.close()


def test_files_that_cannot_be_used_are_told_at_once(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        ClientTlsContext(ClientTls(tmp_path / "none.pem"))
    made = ClientTlsContext(ClientTls(authority.file)).context()
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
