"""Tests a gateway with TLS on its HTTP and gRPC listeners that calls another gateway over TLS, and
a raw socket of GraphPipe with TLS."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from e2e.running import Infergate, started_infergate
from faults.watch import metric, until
from tls_kit import Authority, Pair, replace_files

LISTENERS = """
listeners:
  admin: {{{{address: "127.0.0.1:{{0}}"}}}}
  grpc:
    address: "127.0.0.1:{{1}}"
    tls: {tls}
  http:
    address: "127.0.0.1:{{2}}"
    tls: {tls}
"""
BACK = """
backends:
  embedded: {protocol: builtin}
routes:
  - {model: "*", backend: embedded}
"""
FRONT = """
backends:
  rest:
    protocol: v2-rest
    endpoints: [https://127.0.0.1:{rest}]
    tls: {tls}
  rpc:
    protocol: v2-grpc
    endpoints: [grpcs://127.0.0.1:{rpc}]
    tls: {tls}
routes:
  - {{model: simple, backend: rpc}}
  - {{model: "*", backend: rest}}
"""


def listeners(pair: Pair, authority: Authority | None = None) -> str:
    client_options = ""
    if authority is not None:
        client_options = (
            f", client_certificates: required, client_ca: {authority.file}, "
            'allowed_names: ["*.gateways.example"]'
        )
    tls = f"{{{{certificate: {pair.certificate}, key: {pair.key}{client_options}}}}}"
    return LISTENERS.format(tls=tls)


@dataclass(frozen=True)
class Chain:
    front: Infergate
    back: Infergate
    authority: Authority
    certificate: Pair
    """The certificate of the front gateway, which a test may replace."""


@pytest.fixture(scope="module", params=["own", "compat"])
def chain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    clients = Authority(tmp_path_factory.mktemp("clients"))
    # The back gateway's certificate has a name that is never resolved.
    back_pair, certificate = authority.issue("back.example"), authority.server()
    client_pair = clients.issue("one.gateways.example")
    tls = (
        f"{{ca: {authority.file}, server_name: back.example, "
        f"certificate: {client_pair.certificate}, key: {client_pair.key}}}"
    )
    engine: str = request.param
    with started_infergate(BACK, listeners(back_pair, clients), engine) as back:
        rest, rpc = back.http.rpartition(":")[2], back.grpc.rpartition(":")[2]
        config = FRONT.format(rest=rest, rpc=rpc, tls=tls)
        with started_infergate(config, listeners(certificate), engine) as front:
            yield Chain(front, back, authority, certificate)


def with_localhost(address: str) -> str:
    """Return the address with the name localhost, for which the certificate is also valid."""
    return address.replace("127.0.0.1", "localhost")


def inputs(module: object, rows: int) -> list[object]:
    created = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [rows, 16], "INT32")  # type: ignore[attr-defined]
        tensor.set_data_from_numpy(np.ones((rows, 16), np.int32))
        created.append(tensor)
    return created


@pytest.mark.parametrize("rows", [1, 100_000])
def test_tritonclient_over_http(chain: Chain, rows: int) -> None:
    tls_context = ssl.create_default_context(cafile=chain.authority.file)
    client = tritonclient.http.InferenceServerClient(
        with_localhost(chain.front.http), ssl=True, ssl_context_factory=lambda: tls_context
    )
    large = tritonclient.http.InferInput("INPUT0", [rows, 16], "FP32")
    large.set_data_from_numpy(np.ones((rows, 16), np.float32))
    assert client.infer("identity", [large]).as_numpy("OUTPUT0").shape == (rows, 16)
    output = client.infer("simple", inputs(tritonclient.http, 1))  # REST to gRPC
    assert output.as_numpy("OUTPUT0").tolist() == [[2] * 16]
    client.close()


def test_tritonclient_over_grpc(chain: Chain) -> None:
    client = tritonclient.grpc.InferenceServerClient(
        with_localhost(chain.front.grpc), ssl=True, root_certificates=str(chain.authority.file)
    )
    output = client.infer("simple", inputs(tritonclient.grpc, 1))
    assert output.as_numpy("OUTPUT0").tolist() == [[2] * 16]
    large = tritonclient.grpc.InferInput("INPUT0", [100_000, 16], "FP32")
    large.set_data_from_numpy(np.ones((100_000, 16), np.float32))
    output = client.infer("identity", [large])  # gRPC to REST
    assert output.as_numpy("OUTPUT0").shape == (100_000, 16)
    client.close()


def test_clients_without_a_certificate_cannot_call_the_back_gateway(chain: Chain) -> None:
    credentials = grpc.ssl_channel_credentials(chain.authority.file.read_bytes())
    options = [("grpc.ssl_target_name_override", "back.example")]
    with grpc.secure_channel(with_localhost(chain.back.grpc), credentials, options) as channel:
        send_request = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError) as caught:
            send_request(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def refused_connections(gateway: Infergate, reason: str) -> float:
    """Return the number of connections that the HTTP listener has refused for ``reason``."""
    name = "infergate_refused_connections_total"
    return metric(gateway, name, listener="http", reason=reason)


def test_plain_text_connections_are_closed_and_counted(chain: Chain) -> None:
    before = refused_connections(chain.front, "plain_text")
    port = int(chain.front.http.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(100) == b""
    assert refused_connections(chain.front, "plain_text") == before + 1
    assert "infergate_certificate_expiry_seconds{listener=" in chain.front.metrics()


def run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    return subprocess.run(
        argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=30
    ).stdout.decode(errors="replace")


def test_curl(chain: Chain) -> None:
    url = f"https://{with_localhost(chain.front.http)}/v2/models/identity"
    output = run("curl", "-sS", "--cacert", str(chain.authority.file), url)
    assert json.loads(output)["name"] == "identity"


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl(chain: Chain, version: str) -> None:
    address, trusted = with_localhost(chain.front.grpc), str(chain.authority.file)
    output = run(
        "openssl", "s_client", "-connect", address, "-CAfile", trusted, "-alpn", "h2", version
    )
    assert "Verify return code: 0 (ok)" in output
    assert "ALPN protocol: h2" in output


def test_a_replaced_certificate_is_presented(chain: Chain) -> None:

    def serial() -> str:
        port = int(chain.front.http.rpartition(":")[2])
        tls_context = ssl.create_default_context(cafile=chain.authority.file)
        with (
            socket.create_connection(("localhost", port)) as raw,
            tls_context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            return str((connection.getpeercert() or {})["serialNumber"])

    before = serial()
    replace_files(chain.authority.server(), chain.certificate)
    until(lambda: serial() != before, "the new certificate is presented")
    assert 'outcome="taken"} 1.0' in chain.front.metrics()


# ---- raw sockets of GraphPipe

RAW_SOCKET_LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: null
  admin: {{address: "127.0.0.1:{0}"}}
  graphpipe:
    - {{address: "127.0.0.1:{1}", model: identity, framing: size-prefixed, tls: TLS}}
"""


def test_a_raw_socket_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.server()
    tls = f"{{{{certificate: {pair.certificate}, key: {pair.key}}}}}"
    with started_infergate(BACK, RAW_SOCKET_LISTENERS.replace("TLS", tls)) as gateway:
        tls_context = ssl.create_default_context(cafile=authority.file)
        port = int(gateway.grpc.rpartition(":")[2])
        with (
            socket.create_connection(("localhost", port)) as raw,
            tls_context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            connection.sendall(struct.pack("<I", 4) + b"none")
            (length,) = struct.unpack("<I", connection.recv(4))
            assert 0 < length < 10_000, "expected a short GraphPipe error"
        before = refused_connections(gateway, "tls")
        plain = ("127.0.0.1", int(gateway.http.rpartition(":")[2]))
        rejection = pytest.raises((ssl.SSLError, ConnectionError))
        with socket.create_connection(plain) as raw, rejection:
            tls_context.wrap_socket(raw, server_hostname="localhost")
        assert refused_connections(gateway, "tls") == before + 1
