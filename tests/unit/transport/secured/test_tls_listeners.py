"""TLS listeners of every engine, on both event loops."""

import asyncio
import dataclasses
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from frame_kit import FramePeer, gated_server
from transport_kit import COMPAT, OWN, Engine, Peer, client_hello

from infergate.core.errors import GatewayError
from infergate.core.limits import MIB, Limits
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.transport.base import Endpoint, RpcUpstream, Server
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.http1.server import H1Server
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import (
    ConnectionCount,
    ConnectionGate,
    ConnectionRefusal,
)
from infergate.transport.tls.client_hello import AlpnOffer
from infergate.transport.tls.server_context import ServerTlsContext
from tls_kit import Authority, Pair, client_tls, replace_files, server_tls
from waiting import until

LIMITS = Limits(body=80_000_000, connect_time=5.0)
QUICK = dataclasses.replace(LIMITS, header_time=0.2, idle_body_time=0.3)
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.server()


@dataclasses.dataclass
class Harness:
    """A TLS listener with its refusals and reloads."""

    server: Server
    gate: ConnectionGate
    calls: list[RequestContext]
    refused: list[ConnectionRefusal]
    reloads: list[bool]

    @property
    def port(self) -> int:
        return self.server.address.port

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("localhost", self.port, tls=True)

    async def connect(self, context: ssl.SSLContext) -> Peer:
        reader, writer = await asyncio.open_connection("localhost", self.port, ssl=context)
        return Peer(reader, writer)

    async def wait_refused(self, *reasons: ConnectionRefusal) -> None:
        """Wait until connections were refused for exactly ``reasons`` and none is open."""
        await until(lambda: self.refused == list(reasons) and not self.gate.connections)


def context(trusted: Authority, identity: Pair | None = None) -> ssl.SSLContext:
    result = ssl.create_default_context(cafile=trusted.file)
    if identity is not None:
        result.load_cert_chain(identity.certificate, identity.key)
    return result


@asynccontextmanager
async def serve(
    kind: str,
    pair: Pair,
    engine: Engine = OWN,
    limits: Limits = LIMITS,
    **options: object,
) -> AsyncIterator[Harness]:
    """Start a listener; ``kind`` is http, grpc or frames."""
    refused: list[ConnectionRefusal] = []
    reloads: list[bool] = []
    names = {"http": ["http/1.1"], "grpc": ["h2"], "frames": []}
    certificates = ServerTlsContext(kind, server_tls(pair, **options), names[kind], reloads.append)
    gate = ConnectionGate(kind, ConnectionCount(), certificates, refused.append)
    admission = Admission(limits)
    server, app = gated_server(kind, engine, limits, admission, gate)
    await server.start()
    try:
        yield Harness(server, gate, app.calls, refused, reloads)
    finally:
        await server.stop(0)
        assert (admission.requests, admission.bytes, gate.connections) == (0, 0, 0)


def requiring(authority: Authority, **options: object) -> dict[str, Any]:
    """Return the options of a listener that requires client certificates."""
    return {"client_certificates": "required", "client_ca": authority.file, **options}


def grpc_upstream(
    engine: Engine, authority: Authority, identity: Pair | None = None
) -> RpcUpstream:
    return engine.upstream(LIMITS, client_tls(authority, identity))


async def echo_http(engine: Engine, harness: Harness, body: bytes, authority: Authority) -> bytes:
    upstream = engine.http_upstream(LIMITS, client_tls(authority))
    try:
        wire = HttpRequest("POST", "/", body=(body,))
        response = await upstream.exchange(wire, harness.endpoint, 60)
    finally:
        await upstream.close()
    return bytes(join_parts(response.body))


async def echo_grpc(upstream: RpcUpstream, harness: Harness, message: bytes) -> bytes:
    response = await upstream.exchange(RpcRequest("/t.T/Echo", (message,)), harness.endpoint, 60)
    assert not response.code, response.details
    return bytes(join_parts(response.message))


BODIES = [b"", b"hi", bytes(100_000), b"0123456789abcdef" * 200_000]
LARGE = b"0123456789abcdef" * (4 * MIB)


async def test_http_echoes_bodies(engine: Engine, authority: Authority, pair: Pair) -> None:
    async with serve("http", pair, engine) as harness:
        for body in BODIES:
            assert await echo_http(engine, harness, body, authority) == b"POST " + body
        assert not harness.refused


async def test_grpc_echoes_messages(engine: Engine, authority: Authority, pair: Pair) -> None:
    upstream = grpc_upstream(engine, authority)
    async with serve("grpc", pair, engine) as harness:
        for body in BODIES:
            assert await echo_grpc(upstream, harness, body) == body
        await upstream.close()


def last_exchange(port: int, context: ssl.SSLContext, body: bytes) -> bytes:
    """Return all bytes of the response to a connection's last request."""
    head = f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(head.encode() + body)
        return b"".join(iter(lambda: peer.recv(65_536), b""))


async def test_a_long_response_is_complete_before_the_connection_closes(
    engine: Engine, authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's TLS transport must not be closed while it reports that its buffer has drained."""
    body = bytes(5_000_000)
    async with serve("http", pair, engine) as harness:
        for _ in range(3):
            response = await asyncio.to_thread(
                last_exchange, harness.port, context(authority), body
            )
            assert response.endswith(b"\r\n\r\nPOST " + body)
        await until(lambda: not harness.gate.connections)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_very_large_bodies_are_complete(authority: Authority, pair: Pair) -> None:
    async with serve("http", pair) as harness:
        assert await echo_http(OWN, harness, LARGE, authority) == b"POST " + LARGE
    upstream = grpc_upstream(OWN, authority)
    async with serve("grpc", pair) as harness:
        assert await echo_grpc(upstream, harness, LARGE) == LARGE
        await upstream.close()


async def test_frames_are_echoed(authority: Authority, pair: Pair) -> None:
    async with serve("frames", pair) as harness:
        peer = await harness.connect(context(authority))
        framed = FramePeer(peer.reader, peer.writer)
        for body in BODIES[1:]:
            assert await framed.exchange(body) == b"POST " + body
        await peer.close()


@pytest.mark.parametrize(
    ("kind", "agreed"), [("http", "http/1.1"), ("grpc", "h2"), ("frames", None)]
)
async def test_alpn_choice(authority: Authority, pair: Pair, kind: str, agreed: str | None) -> None:
    offering = context(authority)
    offering.set_alpn_protocols(["h2", "http/1.1"])
    async with serve(kind, pair) as harness:
        peer = await harness.connect(offering)
        tls = peer.writer.get_extra_info("ssl_object")
        assert (tls.selected_alpn_protocol(), tls.version()) == (agreed, "TLSv1.3")
        await peer.close_quietly()


def handshake(port: int, offering: ssl.SSLContext, step: int) -> str | None:
    """Run a handshake in pieces of ``step`` bytes; return the ALPN protocol. Raises SSLError."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = offering.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                output = outgoing.read()
                for start in range(0, len(output), step):
                    raw.sendall(output[start : start + step])
                    if step < 100:
                        time.sleep(0.001)  # let the server read each piece separately
                if received := raw.recv(65_536):
                    incoming.write(received)
                else:
                    incoming.write_eof()
            else:
                return client.selected_alpn_protocol()


OFFERS = [
    ("http", ["h2"], False),
    ("http", ["x" * 255, "h2", "spdy/3"], False),
    ("http", ["h2", "http/1.1"], True),
    ("http", [], True),
    ("grpc", ["http/1.1"], False),
    ("grpc", ["grpc-exp", "h2"], True),
    ("grpc", [], True),
    ("frames", ["http/1.1"], True),
]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("step", [64, 100_000])
@pytest.mark.parametrize("offer", OFFERS, ids=str)
async def test_alpn_offers_without_a_common_protocol_are_refused(
    authority: Authority,
    pair: Pair,
    step: int,
    version: ssl.TLSVersion,
    offer: tuple[str, list[str], bool],
) -> None:
    """RFC 7301, 3.2: the handshake fails if the listener supports none of the offered protocols."""
    kind, offered, is_accepted = offer
    offering = context(authority)
    offering.maximum_version = version
    if offered:
        offering.set_alpn_protocols(offered)
    async with serve(kind, pair) as harness:
        if is_accepted:
            agreed = await asyncio.to_thread(handshake, harness.port, offering, step)
            assert agreed in {None, "h2", "http/1.1"}
            assert not harness.refused
            return
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            await asyncio.to_thread(handshake, harness.port, offering, step)
        await harness.wait_refused(ConnectionRefusal.ALPN)


@pytest.mark.parametrize("record", [1, 7, 100, 10_000])
def test_an_alpn_offer_split_into_records(record: int) -> None:
    offering = ssl.create_default_context()
    offering.set_alpn_protocols(["h2"])
    hello = client_hello(offering)[5:]
    pieces = [hello[i : i + record] for i in range(0, len(hello), record)]
    sent = b"".join(b"\x16\x03\x01" + len(each).to_bytes(2) + each for each in pieces)
    for protocols, excluded in ((["http/1.1"], True), (["h2"], False), ([], False)):
        offer = AlpnOffer(protocols)
        decisions = [offer.excludes(memoryview(sent)[i : i + 1]) for i in range(len(sent))]
        assert decisions == [False] * (len(sent) - 1) + [excluded]
    for cut in range(len(hello)):  # malformed bytes are left to OpenSSL
        truncated = hello[:1] + (cut).to_bytes(3) + hello[4 : 4 + cut]
        wire = b"\x16\x03\x01" + len(truncated).to_bytes(2) + truncated
        assert not AlpnOffer(["h2"]).excludes(memoryview(wire))


@pytest.mark.parametrize("kind", ["http", "grpc", "frames"])
@pytest.mark.parametrize(
    ("ciphers", "is_accepted"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", True),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", True),
        ("ECDHE-ECDSA-AES128-SHA", False),
        ("ECDHE-ECDSA-AES256-SHA384", False),
        ("ECDHE-ECDSA-AES128-CCM", False),
        ("AES128-GCM-SHA256:AES128-SHA:DHE-RSA-AES128-GCM-SHA256", False),
    ],
)
async def test_only_strong_tls_1_2_ciphers_are_accepted(
    authority: Authority,
    pair: Pair,
    kind: str,
    ciphers: str,
    is_accepted: bool,
) -> None:
    tls_1_2 = context(authority)
    tls_1_2.maximum_version = ssl.TLSVersion.TLSv1_2
    tls_1_2.set_ciphers(ciphers)
    async with serve(kind, pair) as harness:
        if is_accepted:
            await asyncio.to_thread(handshake, harness.port, tls_1_2, 100_000)
            assert not harness.refused
            return
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
            await asyncio.to_thread(handshake, harness.port, tls_1_2, 100_000)
        await harness.wait_refused(ConnectionRefusal.HANDSHAKE)


async def test_versions_below_the_minimum_are_refused(authority: Authority, pair: Pair) -> None:
    tls_1_2 = context(authority)
    tls_1_2.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serve("http", pair) as harness:
        await (await harness.connect(tls_1_2)).close()
    async with serve("http", pair, min_version="1.3") as harness:
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await harness.connect(tls_1_2)
        await harness.wait_refused(ConnectionRefusal.HANDSHAKE)


@pytest.mark.parametrize("kind", ["http", "grpc", "frames"])
async def test_plain_text_on_a_tls_port_is_refused(
    authority: Authority, pair: Pair, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(kind, pair) as harness:
        with caplog.at_level("INFO"):
            reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
            writer.write(GET)
            assert await reader.read() == b""
            writer.close()
        await harness.wait_refused(ConnectionRefusal.PLAIN_TEXT)
        assert "does not speak TLS" in caplog.text
        await (await harness.connect(context(authority))).close_quietly()


@pytest.mark.parametrize("start", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_times_out(pair: Pair, start: bytes) -> None:
    async with serve("http", pair, limits=QUICK) as harness:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(start)
        assert await reader.read() == b""
        writer.close()
        await harness.wait_refused(ConnectionRefusal.HANDSHAKE_TIME)


async def test_connections_without_data_are_not_counted(pair: Pair) -> None:
    """Load balancers check in this way that the port is open."""
    async with serve("http", pair) as harness:
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.close()
        await until(lambda: not harness.gate.connections)
        assert not harness.refused


def send_garbage(port: int, context: ssl.SSLContext) -> None:
    """On an established connection, send a record that cannot be decrypted."""
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        os.write(peer.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            peer.recv(1)


async def test_garbage_after_the_handshake_is_fatal(authority: Authority, pair: Pair) -> None:
    async with serve("http", pair) as harness:
        await asyncio.to_thread(send_garbage, harness.port, context(authority))
        await harness.wait_refused(ConnectionRefusal.HANDSHAKE)


def corrupted_hello(seed: int) -> bytes:
    """Return a ClientHello with changed, missing or additional bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    hello, rng = bytearray(client_hello(context)), random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        hello[rng.randrange(len(hello))] = rng.randrange(256)
    return bytes(hello[: rng.choice((5, 9, 100, len(hello), len(hello)))]) + rng.randbytes(
        rng.choice((0, 0, 3, 400))
    )


async def test_corrupted_handshakes_fail(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    limits = dataclasses.replace(LIMITS, header_time=1.0)
    async with serve("http", pair, limits=limits) as harness:
        writers = []
        for seed in range(150):
            _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
            writer.write(corrupted_hello(seed))
            writers.append(writer)
        await until(lambda: len(harness.refused) > 100 and not harness.gate.connections)
        for writer in writers:
            writer.close()
        peer = await harness.connect(context(authority))
        assert (await peer.request(GET)).status == 200
        await peer.close()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_a_required_client_certificate_is_verified(
    authority: Authority,
    other_authority: Authority,
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
) -> None:
    valid = authority.issue("a.clients.example")
    async with serve("http", pair, **requiring(authority)) as harness:
        peer = await harness.connect(context(authority, valid))
        assert (await peer.request(GET)).status == 200
        assert harness.calls[0].peer_identity == ("a.clients.example",)
        await peer.close()
        with caplog.at_level("INFO"):
            for certificate, alert, logged in (
                (None, "CERTIFICATE_REQUIRED", "sent no certificate"),
                (other_authority.issue("a.clients.example"), "UNKNOWN_CA", "local issuer"),
                (authority.issue("a", expired=True), "CERTIFICATE_EXPIRED", "has expired"),
            ):
                peer = await harness.connect(context(authority, certificate))
                with pytest.raises(ssl.SSLError, match=alert):
                    await peer.read_response()
                await peer.close_quietly()
                await until(lambda logged=logged: logged in caplog.text)  # type: ignore[misc]
        await harness.wait_refused(*[ConnectionRefusal.CERTIFICATE] * 3)


async def test_an_optional_client_certificate_is_verified(
    authority: Authority, other_authority: Authority, pair: Pair
) -> None:
    valid = authority.issue("spiffe://example/ns/a", "b.example")
    async with serve(
        "http", pair, client_certificates="optional", client_ca=authority.file
    ) as harness:
        for certificate in (None, valid):
            peer = await harness.connect(context(authority, certificate))
            assert (await peer.request(GET)).status == 200
            await peer.close()
        assert [call.peer_identity for call in harness.calls] == [
            (),
            ("spiffe://example/ns/a", "b.example"),
        ]
        peer = await harness.connect(context(authority, other_authority.issue("b.example")))
        with pytest.raises(ssl.SSLError):
            await peer.read_response()
        await peer.close_quietly()
        await harness.wait_refused(ConnectionRefusal.CERTIFICATE)


NAMES = ("*.clients.example", "spiffe://example/ns/*", "10.0.0.?")


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (["a.clients.example"], True),
        (["a.b.clients.example"], True),
        (["other.example", "spiffe://example/ns/x/sa/y"], True),
        (["10.0.0.7"], True),
        (["clients.example"], False),
        (["a.clients.example.com", "spiffe://examples/ns/x"], False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_only_allowed_names_of_client_certificates_are_accepted(
    authority: Authority, pair: Pair, kind: str, names: list[str], allowed: bool
) -> None:
    certificate = authority.issue(*names)
    async with serve(kind, pair, **requiring(authority, allowed_names=NAMES)) as harness:
        if kind == "grpc":
            upstream: RpcUpstream = H2Upstream(LIMITS, client_tls(authority, certificate))
            if allowed:
                await echo_grpc(upstream, harness, b"x")
            else:
                with pytest.raises(GatewayError):
                    await echo_grpc(upstream, harness, b"x")
            await upstream.close()
        else:
            peer = await harness.connect(context(authority, certificate))
            await peer.send(GET)
            if allowed:
                assert (await peer.read_response()).status == 200
            else:
                assert await peer.reader.read() == b""
            await peer.close()
        assert bool(harness.calls) is allowed
        await harness.wait_refused(*[] if allowed else [ConnectionRefusal.NAME])


async def test_the_order_of_a_certificates_names_is_fixed(
    engine: Engine, authority: Authority, pair: Pair
) -> None:
    certificate = authority.issue("a@example", "b.example", "spiffe://example/ns/c")
    async with serve("grpc", pair, engine, **requiring(authority)) as harness:
        upstream = grpc_upstream(engine, authority, certificate)
        await echo_grpc(upstream, harness, b"x")
        expected = ("spiffe://example/ns/c", "b.example", "a@example")
        assert harness.calls[0].peer_identity == expected
        await upstream.close()


@pytest.mark.parametrize("required", [True, False])
async def test_grpcio_verifies_client_certificates(
    authority: Authority, other_authority: Authority, pair: Pair, required: bool
) -> None:
    options = requiring(authority, allowed_names=NAMES) if required else {}
    async with serve("grpc", pair, COMPAT, **options) as harness:
        valid = grpc_upstream(COMPAT, authority, authority.issue("a.clients.example"))
        assert await echo_grpc(valid, harness, b"x") == b"x"
        assert harness.calls[0].peer_identity == (("a.clients.example",) if required else ())
        await valid.close()
        if not required:
            return
        for certificate in (None, other_authority.issue("a.clients.example")):
            invalid = grpc_upstream(COMPAT, authority, certificate)
            with pytest.raises(GatewayError):
                await echo_grpc(invalid, harness, b"x")
            await invalid.close()
        other = grpc_upstream(COMPAT, authority, authority.issue("b.example"))
        wire = RpcRequest("/t.T/Echo", (b"x",))
        response = await other.exchange(wire, harness.endpoint, 10)
        assert (response.code, response.details) == (
            14,  # RpcEcho's status for every refusal
            "no name in the client's certificate is allowed",
        )
        await other.close()
        assert len(harness.calls) == 1


def _check_files_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.transport.tls.file_watch._CHECK_INTERVAL", 0.0)


async def test_certificates_are_renewed_under_load(
    authority: Authority, other_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request fails. The clients trust both authorities."""
    renewed = authority.server()
    trusting_both = ssl.create_default_context(cafile=authority.file)
    trusting_both.load_verify_locations(other_authority.file)
    serials: set[str] = set()
    is_finished = False

    async def client(harness: Harness, *, keep_alive: bool) -> int:
        count = 0
        peer = await harness.connect(trusting_both)
        while not is_finished or not count:
            assert (await peer.request(GET)).status == 200
            count += 1
            if not keep_alive:
                certificate = peer.writer.get_extra_info("ssl_object").getpeercert()
                serials.add(str(certificate["serialNumber"]))
                await peer.close()
                peer = await harness.connect(trusting_both)
        await peer.close()
        return count

    async with serve("http", renewed) as harness:
        _check_files_always(monkeypatch)
        clients = [asyncio.create_task(client(harness, keep_alive=i % 2 == 0)) for i in range(6)]
        await until(lambda: len(serials) == 1)
        for count, issuer in enumerate((other_authority, authority, other_authority), 2):
            replace_files(issuer.server(), renewed)
            await until(lambda count=count: len(serials) == count)  # type: ignore[misc]
        is_finished = True
        assert all(await asyncio.gather(*clients))
        assert harness.reloads.count(True) >= 3
        assert not harness.refused


async def test_an_unusable_pair_keeps_the_previous_one(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renewed, other = authority.server(), authority.server()
    async with serve("http", renewed) as harness:
        _check_files_always(monkeypatch)
        steps: list[tuple[Callable[[], object], str, list[bool]]] = [
            (
                lambda: renewed.key.write_bytes(other.key.read_bytes()),
                "does not belong",
                [False],
            ),
            (lambda: renewed.certificate.write_text("none"), "no PEM certificate", [False] * 2),
            (renewed.certificate.unlink, "cannot be read", [False] * 3),
            (lambda: replace_files(other, renewed), "a new certificate", [False] * 3 + [True]),
        ]
        for change, logged, reloads in steps:
            change()
            with caplog.at_level("INFO"):
                peer = await harness.connect(context(authority))
            await peer.close()
            assert logged in caplog.text
            assert harness.reloads == reloads


async def test_certificates_behind_replaced_links_are_reloaded(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes replaces the files of a secret in this way."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        issued = authority.server()
        issued.certificate.rename(tmp_path / name / "tls.crt")
        issued.key.rename(tmp_path / name / "tls.key")
    data = tmp_path / "..data"
    data.symlink_to("one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    async with serve("http", Pair(tmp_path / "tls.crt", tmp_path / "tls.key")) as harness:
        _check_files_always(monkeypatch)
        serials = []
        for _ in range(2):
            peer = await harness.connect(context(authority))
            certificate = peer.writer.get_extra_info("ssl_object").getpeercert()
            serials.append(certificate["serialNumber"])
            await peer.close()
            new = tmp_path / "..new"
            new.symlink_to("two")
            new.replace(data)
        assert len(set(serials)) == 2
        assert harness.reloads == [True]


async def test_certificates_are_renewed_with_grpcio(
    authority: Authority, other_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = authority.server()
    async with serve("grpc", renewed, COMPAT) as harness:
        _check_files_always(monkeypatch)
        before = grpc_upstream(COMPAT, authority)
        assert await echo_grpc(before, harness, b"1") == b"1"
        replace_files(other_authority.server(), renewed)
        after = grpc_upstream(COMPAT, other_authority)
        assert await echo_grpc(after, harness, b"2") == b"2"
        assert await echo_grpc(before, harness, b"3") == b"3", "open connections stay usable"
        await before.close()
        await after.close()


def read_slowly(port: int, context: ssl.SSLContext, request: bytes) -> bytes:
    """Return the response that a blocking client with a small receive buffer reads."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", port))
        with context.wrap_socket(raw, server_hostname="localhost") as peer:
            peer.sendall(request)
            response = b""
            while received := peer.recv(1 << 20):
                response += received
    return response


async def test_a_slow_reader_gets_the_whole_last_response(
    engine: Engine, authority: Authority, pair: Pair
) -> None:
    """The TLS transports of the event loops would disconnect such a client."""
    request = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serve("http", pair, engine) as harness:
        response = await asyncio.to_thread(read_slowly, harness.port, context(authority), request)
        assert response.endswith(b"yyyz")
        assert len(response) > 5_000_300
        await until(lambda: not harness.gate.connections)


async def test_a_refused_body_gets_an_error_and_close_notify(
    authority: Authority, pair: Pair
) -> None:
    async with serve("http", pair) as harness:
        peer = await harness.connect(context(authority))
        await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n\r\nhalf")
        assert (await peer.read_response()).status == 413
        assert await peer.reader.read() == b"", "the connection ends with close_notify"
        await peer.close()


async def test_a_stopping_listener_closes_idle_connections(
    authority: Authority, pair: Pair
) -> None:
    async with serve("http", pair) as harness:
        idle = await harness.connect(context(authority))
        _, connecting = await asyncio.open_connection("127.0.0.1", harness.port)
        await until(lambda: harness.gate.connections == 2)
        async with asyncio.timeout(5):
            await harness.server.stop(60)
        assert harness.gate.connections == 0
        assert await idle.reader.read() == b""
        await idle.close()
        connecting.close()


async def test_pipelined_requests_get_responses_in_order(authority: Authority, pair: Pair) -> None:
    """H1Server receives several requests in one read, and responds in order."""
    async with serve("http", pair) as harness:
        assert isinstance(harness.server, H1Server)
        peer = await harness.connect(context(authority))
        await peer.send(GET * 500)
        for _ in range(500):
            assert (await peer.read_response()).body == b"GET "
        await peer.close()
