"""Tests that bytes that are not HTTP, or that two parsers could read differently, are rejected with
400, and that nothing after them is served.

Also tests invalid hosts, absolute targets, and clients that use the port of another protocol.
"""

from __future__ import annotations

import pytest

from faults import frames, h2
from faults.h2 import PREFACE
from faults.low_limits import CHUNKED, LIVE, VALID_BODY, LimitedGateway, head
from faults.peer import Client, post
from faults.watch import counted, refused_by, rises

HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(193)
"""The first bytes of a TLS client."""
REFUSED, REQUESTS = "infergate_refused_connections_total", "infergate_requests_total"


def test_bytes_after_a_rejected_request_are_not_served(gateway: LimitedGateway) -> None:
    before = counted(gateway, operation="server_live")
    with rises(gateway, REQUESTS, outcome="bad_request"), Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked") + b"0\r\n\r\n" + LIVE)
        assert client.answer().status == 400
        assert client.read_to_end() == b""
    assert counted(gateway, operation="server_live") == before


_BROKEN = {  # test_smuggling and test_h1_reader have more cases
    "Transfer-Encoding and Content-Length": head("Transfer-Encoding: chunked") + CHUNKED,
    "two Content-Lengths": head("Content-Length: 4") + VALID_BODY,
    "Content-Length +5": head("Content-Length: +5", length=None) + b"12345",
    "obs-fold": head("A: b\r\n c") + VALID_BODY,
    "NUL in a header": head("A: b\0c") + VALID_BODY,
    "a header without a name": head(": b") + VALID_BODY,
    "TLS": HELLO,
    "HTTP/2": PREFACE + b"\0\0\0\x04\0\0\0\0\0",
    "HTTP/0.9": b"GET /v2/health/live\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no Host": b"GET /v2/health/live HTTP/1.1\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
}


@pytest.mark.parametrize("case", _BROKEN)
def test_non_http_input_gets_400_and_a_close(gateway: LimitedGateway, case: str) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.http) as client:
        client.send(_BROKEN[case])
        answer = client.answer()
        assert answer.status == 400
        assert answer.error
        assert client.read_to_end() == b""
    assert counted(gateway, outcome="bad_request") == before + 1


@pytest.mark.parametrize("host", ["a/b", "a, b", "user@a", "a:b", "\u00e9"])
def test_an_invalid_host_is_rejected(gateway: LimitedGateway, host: str) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.http) as client:
        client.send(f"GET /v2/health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = client.answer()
        assert answer.status == 400
        assert "Host" in answer.error
    assert counted(gateway, outcome="bad_request") == before + 1


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("/config", "evil.example", 403),
        ("http://evil.example:80/config", "127.0.0.1", 403),
        ("http://evil.example", "127.0.0.1", 403),
        ("http://127.0.0.1/config", "evil.example", 200),
        ("http://evil.example/metrics", "127.0.0.1", 200),
    ],
)
def test_an_absolute_target_determines_the_host(
    gateway: LimitedGateway, target: str, host: str, status: int
) -> None:
    """The Host header is ignored (RFC 9112, 3.2.2), so it cannot bypass the check against DNS
    rebinding."""
    with Client(gateway.admin) as client:
        client.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert client.answer().status == status


# ---- another protocol's port


@pytest.mark.parametrize("listener", ["http", "graphpipe[0]", "admin"])
def test_tls_on_a_plain_text_port_is_counted(gateway: LimitedGateway, listener: str) -> None:
    address = gateway.raw if "[" in listener else getattr(gateway, listener)
    tls = rises(gateway, REFUSED, listener=listener, reason="tls")
    with tls, Client(address) as client:
        client.send(HELLO)
        client.read_to_end()


def test_http_on_a_raw_socket_is_rejected(gateway: LimitedGateway) -> None:
    """``GET `` is read as a length of half a gigabyte."""
    with refused_by(gateway, "body"), Client(gateway.raw) as client:
        client.send(LIVE)
        assert "the limit is" in frames.error_in(client)


def test_http_2_on_a_raw_socket_is_rejected(gateway: LimitedGateway) -> None:
    with refused_by(gateway, "body"), Client(gateway.raw) as client:
        client.send(PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        assert "the limit is" in frames.error_in(client)


def test_frames_on_the_http_port_are_rejected(gateway: LimitedGateway) -> None:
    with rises(gateway, REQUESTS, outcome="bad_request"), Client(gateway.http) as client:
        client.send(frames.FRAME)
        assert client.answer().status == 400
    assert post(gateway.http, "/graphpipe/identity", frames.FRAME[4:]).status == 200
