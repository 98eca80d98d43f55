"""TLS clients: trusted authorities, server names, ciphers and errors."""

import functools
import gc
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from transport_kit import RPC_LIMITS as LIMITS
from transport_kit import GrpcHarness, HttpHarness, fake_backend, responding

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.transport.base import Endpoint, RpcUpstream
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.http1.client import H1Upstream
from infergate.transport.tls import certificates, client_context

FILES = Path(__file__).parents[2] / "data" / "tls"
AUTHORITY, OTHER_AUTHORITY = FILES / "authority.pem", FILES / "stranger.pem"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

SendRequest = Callable[[Endpoint], Awaitable[bytes]]
Client = Callable[[], AbstractAsyncContextManager[SendRequest]]
Serve = Callable[[str], AbstractAsyncContextManager[Endpoint]]
"""Starts a server with the certificate of the given name."""
Trust = Callable[[Path], None]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trust:
    def set_authorities(file: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))

    return set_authorities


@asynccontextmanager
async def https(name: str, max_connections: int = 1) -> AsyncIterator[Endpoint]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FILES / f"{name}.pem", FILES / f"{name}.key")
    async with fake_backend(responding(OK, keep_open=True), context) as fake:
        yield fake.endpoint._replace(tls=True)
    assert fake.connections <= max_connections, "the connection is reused"


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: object) -> object:
        async def echo(message: bytes, context: object) -> bytes:
            return message

        return grpc.unary_unary_rpc_method_handler(echo)


@asynccontextmanager
async def grpcs(name: str) -> AsyncIterator[Endpoint]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    pair = ((FILES / f"{name}.key").read_bytes(), (FILES / f"{name}.pem").read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield Endpoint("127.0.0.1", port, tls=True)
    finally:
        await server.stop(0)


@asynccontextmanager
async def https_client() -> AsyncIterator[SendRequest]:
    upstream = H1Upstream(LIMITS)

    async def send_request(endpoint: Endpoint) -> bytes:
        response = await upstream.exchange(HttpRequest("POST", "/", body=(b"x",)), endpoint, 10)
        return bytes(join_parts(response.body))

    try:
        yield send_request
    finally:
        await upstream.close()


@asynccontextmanager
async def rpc_client(create: Callable[[Limits], RpcUpstream]) -> AsyncIterator[SendRequest]:
    upstream = create(LIMITS)

    async def send_request(endpoint: Endpoint) -> bytes:
        response = await upstream.exchange(RpcRequest("/t.T/Echo", (b"ok",)), endpoint, 10)
        return bytes(join_parts(response.message))

    try:
        yield send_request
    finally:
        await upstream.close()


grpcs_client = functools.partial(rpc_client, GrpcioUpstream)
own_grpcs_client = functools.partial(rpc_client, H2Upstream)
TRANSPORTS = pytest.mark.parametrize(
    ("serve", "client"),
    [(https, https_client), (grpcs, grpcs_client), (grpcs, own_grpcs_client)],
    ids=["https", "grpcs", "grpcs by the own engine"],
)
GRPCS_CLIENTS = pytest.mark.parametrize(
    "client", [grpcs_client, own_grpcs_client], ids=["grpcio", "own engine"]
)


async def connect_error(
    send_request: SendRequest, endpoint: Endpoint, public: str = client_context.NO_TLS
) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await send_request(endpoint)
    error = caught.value
    assert (error.kind, error.origin) == (Kind.CONNECT, Origin.BACKEND)
    assert error.public == public
    assert endpoint.authority in error.detail
    return error


@TRANSPORTS
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_trusted_servers_work(serve: Serve, client: Client, trust: Trust, host: str) -> None:
    trust(AUTHORITY)
    async with serve("server") as endpoint, client() as send_request:
        for _ in range(3):
            assert await send_request(endpoint._replace(host=host)) == b"ok"


@TRANSPORTS
async def test_certificates_are_checked_for_the_name_not_the_address(
    serve: Serve, client: Client, trust: Trust
) -> None:
    """The certificates are for 127.0.0.1 and localhost only."""
    trust(AUTHORITY)
    async with serve("server") as endpoint, client() as send_request:
        backend = endpoint._replace(host="localhost", address="127.0.0.1")
        assert await send_request(backend) == b"ok"
    async with serve("server") as endpoint, client() as send_request:
        backend = endpoint._replace(host="pods.test", address="127.0.0.1")
        with raises_kind(Kind.CONNECT) as caught:
            await send_request(backend)
        assert "127.0.0.1" in caught.value.detail


@TRANSPORTS
@pytest.mark.parametrize(
    ("trusted", "name", "reason"),
    [
        (OTHER_AUTHORITY, "server", "CERTIFICATE_VERIFY_FAILED"),
        (AUTHORITY, "other", "mismatch|Hostname Verification"),
        (FILES / "none", "server", ""),
    ],
    ids=["another authority", "another name", "no authority"],
)
async def test_an_untrusted_server_is_a_connect_error(  # noqa: PLR0917 - the cases
    serve: Serve, client: Client, trust: Trust, trusted: Path, name: str, reason: str
) -> None:
    trust(trusted)
    async with serve(name) as endpoint, client() as send_request:
        error = await connect_error(send_request, endpoint)
    assert re.search(reason, error.detail)


async def test_https_requires_a_tls_server(harness: HttpHarness, trust: Trust) -> None:
    trust(AUTHORITY)
    async with https_client() as send_request:
        error = await connect_error(send_request, harness.endpoint._replace(tls=True))
    assert "SSLError" in error.detail


@GRPCS_CLIENTS
async def test_grpcs_requires_a_tls_server(
    client: Client, harness: HttpHarness, grpc_harness: GrpcHarness, trust: Trust
) -> None:
    trust(AUTHORITY)
    async with client() as send_request:
        error = await connect_error(send_request, harness.endpoint._replace(tls=True))
        assert "handshake failed" in error.detail or "SSLError" in error.detail
        with raises_kind(Kind.CONNECT):
            await send_request(grpc_harness.endpoint._replace(tls=True))


@GRPCS_CLIENTS
async def test_grpcs_requires_http2(
    client: Client, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    trust(AUTHORITY)
    # grpcio reconnects by itself if the test is slow.
    async with https("server", max_connections=100) as endpoint, client() as send_request:
        await connect_error(send_request, endpoint, client_context.NO_HTTP2)
    gc.collect()
    assert not caplog.records, "asyncio reports exceptions that were not retrieved"


@pytest.mark.parametrize(
    ("ciphers", "is_accepted"),
    [
        ("ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384:ECDHE-RSA-AES128-SHA", False),
        ("AES256-GCM-SHA384:AES128-SHA", False),
        (certificates.CIPHERS, True),
    ],
)
def test_weak_tls_1_2_ciphers_are_rejected(ciphers: str, is_accepted: bool, trust: Trust) -> None:
    trust(AUTHORITY)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FILES / "server.pem", FILES / "server.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = (
        client_context.ClientTlsContext(None)
        .context()
        .wrap_bio(to_client, to_server, server_hostname="localhost")
    )
    server = context.wrap_bio(to_server, to_client, server_side=True)
    rejections = []
    for side in (client, server) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            rejections.append(error.reason)
    assert (client.cipher() is not None, "NO_SHARED_CIPHER" in rejections) == (
        is_accepted,
        not is_accepted,
    )


def test_default_authorities_are_those_of_openssl(trust: Trust, tmp_path: Path) -> None:
    first, second = AUTHORITY.read_bytes(), OTHER_AUTHORITY.read_bytes()
    (tmp_path / "01234567.0").write_bytes(b"subject: a comment\n" + second)
    (tmp_path / "89abcdef.0").write_bytes(first)
    (tmp_path / "other.pem").write_bytes((FILES / "server.pem").read_bytes())
    (tmp_path / "00000000.0").mkdir()
    trust(AUTHORITY)
    assert client_context.default_authorities() == first.strip() + b"\n" + second.strip()
    context = ssl.create_default_context()
    assert context.get_ca_certs(binary_form=True) == [ssl.PEM_cert_to_DER_cert(first.decode())]


def test_authorities_in_several_directories_are_loaded(
    trust: Trust, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust(tmp_path / "none")
    directories = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for directory, file in zip(directories, (AUTHORITY, OTHER_AUTHORITY), strict=False):
        directory.mkdir()
        (directory / "01234567.0").write_bytes(file.read_bytes())
    monkeypatch.setenv("SSL_CERT_DIR", ":".join(map(str, directories)))
    assert client_context.default_authorities().count(b"BEGIN CERTIFICATE") == 2
