"""Tests that certificates identify clients over HTTP, gRPC and raw sockets, and that keys take
precedence."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults.rpc import call
from faults.watch import until
from infergate.access.keys import digest_of
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.graphpipe.backend import METADATA_REQUEST
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata, ModelMetadataRequest
from infergate.core.wire import HttpResponse
from peers.support.process import free_ports
from tls_kit import Authority, Pair

SECRET = "infergate_of-a-key"
LISTENERS = """
listeners:
  admin: {{{{address: "127.0.0.1:{{0}}"}}}}
  grpc: {{{{address: "127.0.0.1:{{1}}", tls: {tls}}}}}
  http: {{{{address: "127.0.0.1:{{2}}", tls: {tls}}}}}
  graphpipe:
    - {{{{address: "127.0.0.1:{raw}", model: simple, framing: size-prefixed, tls: {tls}}}}}
"""
CONFIG = f"""
backends: {{ours: {{protocol: builtin}}}}
routes: [{{model: "*", backend: ours}}]
access:
  keys: [{{name: a, sha256: "{digest_of(SECRET).hex()}"}}]
  rules:
    - {{who: ["cert:one.clients.example"], models: [simple]}}
    - {{who: ["key:a"], models: [identity]}}
"""
READY = "/inference.GRPCInferenceService/ModelReady"


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    authority: Authority
    raw: int
    permitted_pair: Pair
    other_pair: Pair
    certificate_required: bool

    def connect(self, address: str, certificate: Pair | None) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.authority.file)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        port = int(address.rpartition(":")[2])
        raw = socket.create_connection(("localhost", port), timeout=20)
        return context.wrap_socket(raw, server_hostname="localhost")

    def http(self, model: str, certificate: Pair | None, headers: str = "") -> int:
        with self.connect(self.gateway.http, certificate) as connection:
            head = (
                f"GET /v2/models/{model} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"
            )
            connection.sendall(head.encode())
            return int(connection.makefile("rb").readline().split()[1])

    def grpc(self, model: str, certificate: Pair | None) -> grpc.StatusCode:
        trusted = self.authority.file.read_bytes()
        pair = (None, None)
        if certificate is not None:
            pair = certificate.key.read_bytes(), certificate.certificate.read_bytes()
        credentials = grpc.ssl_channel_credentials(trusted, *pair)
        address = self.gateway.grpc.replace("127.0.0.1", "localhost")
        options = [("grpc.use_local_subchannel_pool", 1)]
        message = b"\n" + bytes([len(model)]) + model.encode()  # field 1 is the name
        with grpc.secure_channel(address, credentials, options) as channel:
            return call(channel, message, READY).code

    def frame(self, certificate: Pair | None) -> bytes:
        """Return the response to a framed metadata request."""
        with self.connect(f"localhost:{self.raw}", certificate) as connection:
            connection.sendall(struct.pack("<I", len(METADATA_REQUEST)) + METADATA_REQUEST)
            stream = connection.makefile("rb")
            (length,) = struct.unpack("<I", stream.read(4))
            return stream.read(length)


@pytest.fixture(scope="module", params=["own", "compat"])
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    clients = Authority(tmp_path_factory.mktemp("clients"))
    pair = authority.server()
    permitted_pair = clients.issue("one.clients.example")
    other_pair = clients.issue("two.clients.example")
    (raw,) = free_ports(1)
    verify = {"own": "optional", "compat": "required"}[request.param]
    tls = (
        f"{{{{certificate: {pair.certificate}, key: {pair.key}, client_certificates: {verify}, "
        f"client_ca: {clients.file}}}}}"
    )
    listeners = LISTENERS.format(tls=tls, raw=raw)
    with started_infergate(CONFIG, listeners, request.param) as gateway:
        yield Harness(gateway, authority, raw, permitted_pair, other_pair, verify == "required")


def test_a_certificate_identifies_the_client(harness: Harness) -> None:
    assert harness.http("simple", harness.permitted_pair) == 200
    assert harness.grpc("simple", harness.permitted_pair) is grpc.StatusCode.OK
    framed = HttpResponse(200, {}, [harness.frame(harness.permitted_pair)])
    request = ModelMetadataRequest("simple")
    response = PLUGIN.create({}).parse_response(framed, request, DEFAULT_LIMITS)
    assert isinstance(response, ModelMetadata)
    assert response.inputs
    until(
        lambda: '"identity":"cert:one.clients.example"' in harness.gateway.log.read_text(),
        "the log has the client's identity",
    )


def test_clients_without_permission_or_certificate_are_rejected(harness: Harness) -> None:
    assert harness.http("simple", harness.other_pair) == 403
    assert harness.http("identity", harness.permitted_pair) == 403
    assert harness.grpc("simple", harness.other_pair) is grpc.StatusCode.PERMISSION_DENIED
    assert b"is not permitted for this client" in harness.frame(harness.other_pair)
    if not harness.certificate_required:
        assert harness.http("simple", None) == 401
        assert harness.grpc("simple", None) is grpc.StatusCode.UNAUTHENTICATED
        assert b"credentials are required" in harness.frame(None)


def test_a_key_takes_precedence_over_the_certificate(harness: Harness) -> None:
    key = f"x-api-key: {SECRET}\r\n"
    assert harness.http("identity", harness.permitted_pair, key) == 200
    assert harness.http("simple", harness.permitted_pair, key) == 403
    assert harness.http("simple", harness.permitted_pair, "x-api-key: wrong\r\n") == 401
