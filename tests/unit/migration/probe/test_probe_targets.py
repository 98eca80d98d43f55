from __future__ import annotations

import socket
from pathlib import Path

import pytest
from probe_kit import http_response, scripted_server, server_context

from infergate.core.tls_settings import ClientTls
from infergate.migration.probe.targets import parse_target, port_problem, tls_problem
from tls_kit import Authority


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://a:1", "'ftp' is not a supported scheme"),
        ("htp://a:1", "did you mean 'http'?"),
        ("grpc://a", "needs a port, like grpc://a:8000"),
        ("a", "needs a port, like a:8000"),
        ("a:8000/path", "a path needs a scheme, like http://a:8000/path"),
        ("http://user@a:1", "a URL must not have a user"),
        ("http://:1", "the host is missing"),
    ],
)
def test_an_invalid_address_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        parse_target(text)


def schemes(text: str, *, tls: bool = False) -> list[set[str]]:
    return [{url.scheme for _, url in group} for group in parse_target(text).candidates(tls=tls)]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a:1", [{"http", "grpc"}, {"tcp"}]),
        ("http://a:1", [{"http"}, {"grpc"}, {"tcp"}]),
        ("grpc://a:1", [{"grpc"}, {"http"}, {"tcp"}]),
        ("tcp://a:1", [{"tcp"}, {"http", "grpc"}]),
        ("unix:/s", [{"unix"}]),
        ("http+unix:/s", [{"http+unix"}]),
    ],
)
def test_the_protocols_of_the_scheme_are_tried_first(text: str, groups: list[set[str]]) -> None:
    assert schemes(text) == groups


def test_over_tls_frames_are_not_tried() -> None:
    assert schemes("https://a", tls=True) == [{"https"}, {"grpcs"}]


def test_the_path_is_kept_for_http_and_dropped_for_grpc() -> None:
    urls = {str(u) for g in parse_target("http://a:1/base").candidates(tls=False) for _, u in g}
    assert urls == {"http://a:1/base", "grpc://a:1", "tcp://a:1"}


async def check_port_problem(address: str, reason: str, advice: str, timeout: float = 5) -> None:
    problem = await port_problem(parse_target(address), timeout)
    assert problem is not None
    assert problem.reason == reason
    assert advice in problem.advice


async def test_a_closed_port_is_reported_with_what_to_check() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        reason = "connection refused: the port is closed"
        await check_port_problem(address, reason, "check that the server runs")


@pytest.mark.parametrize("host", ["no-such-host.invalid", f"{'a' * 70}.invalid"])
async def test_an_unknown_host_is_reported(host: str) -> None:
    reason = f"the name '{host}' cannot be resolved"
    await check_port_problem(f"{host}:1", reason, "check the spelling")


async def test_a_missing_socket_is_reported() -> None:
    await check_port_problem(
        "unix:/no/such/socket", "no such file or directory", "check the path of the socket"
    )


async def test_a_server_that_accepts_no_connection_is_reported_after_the_timeout() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(8):  # the kernel drops connections beyond its backlog
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            waiting.append(client)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        await check_port_problem(address, "no connection within 0.1 s", "--timeout", 0.1)
        for client in waiting:
            client.close()


async def test_a_certificate_must_be_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_context(authority)
    async with scripted_server(lambda _: http_response(200, b""), tls) as address:
        target = parse_target(f"https://localhost:{address.split(':')[1]}")
        problem = await tls_problem(target, ClientTls(), 5)
        assert problem is not None
        assert problem.reason.startswith("the certificate is not trusted: ")
        assert "--ca FILE" in problem.advice
        assert await tls_problem(target, ClientTls(ca=authority.file), 5) is None
        assert await tls_problem(target, ClientTls(verify=False), 5) is None


async def test_an_unusable_file_of_an_authority_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    problem = await tls_problem(parse_target("https://127.0.0.1:1"), ClientTls(ca=file), 5)
    assert problem is not None
    assert "ca.pem" in problem.reason
    assert problem.advice == "check --ca"


async def test_a_port_without_tls_is_reported_with_the_url_to_use() -> None:
    async with scripted_server(lambda _: http_response(400, b"")) as address:
        problem = await tls_problem(parse_target(f"grpcs://{address}"), ClientTls(), 5)
    assert problem is not None
    assert problem.reason.startswith("no TLS handshake")
    assert f"grpc://{address}" in problem.advice
