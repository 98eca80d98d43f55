"""Tests broken or hostile clients of the gRPC port, with either engine. The process survives, other
clients are served, and no resource remains in use. (test_h2_attacks tests the responses of
infergate's own engine.)"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from e2e.running import ENGINE
from faults import h2
from faults.low_limits import LimitedGateway, good_call, message
from faults.peer import Client
from faults.rpc import INFER
from faults.test_broken_requests import HELLO
from faults.watch import counted, releases_connections, rises, unharmed

REFUSED, REQUESTS = "infergate_refused_connections_total", "infergate_requests_total"
LIVE = INFER.replace("ModelInfer", "ServerLive")


@pytest.fixture
def gateway(limited_gateway: LimitedGateway) -> Iterator[LimitedGateway]:
    """Run the gateway while other clients send requests over gRPC."""
    with unharmed(limited_gateway, lambda: good_call(limited_gateway)):
        yield limited_gateway


def hello(client: Client) -> None:
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))


def counted_rejection(
    gateway: LimitedGateway, reason: str
) -> contextlib.AbstractContextManager[None]:
    """Check that infergate's own engine counts the closed connection."""
    if ENGINE == "compat":
        return contextlib.nullcontext()
    return rises(gateway, REFUSED, listener="grpc", reason=reason)


def counted_or_released(gateway: LimitedGateway) -> contextlib.AbstractContextManager[None]:
    """Check that the call is counted, or with grpcio that the connection is released."""
    if ENGINE == "compat":
        return releases_connections(gateway, "grpc")
    return rises(gateway, REQUESTS, operation="server_live", protocol="v2-grpc", outcome="ok")


_HELLO = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0)
_PREFIXES = {
    "HTTP/1": b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "TLS": HELLO,
    "zeros": bytes(1000),
    "a wrong preface": h2.PREFACE[:-1] + b"x",
    "DATA before HEADERS": h2.PREFACE + h2.frame(h2.DATA, 0, 1, b"before any headers"),
    "frame of 16 MiB": h2.PREFACE + b"\xff\xff\xff\x04\0\0\0\0\0",
    "invalid HPACK": _HELLO + h2.frame(h2.HEADERS, 5, 1, b"\xff" * 20),
    "even stream": _HELLO + h2.frame(h2.HEADERS, 5, 2, h2.request_headers(INFER)),
}


@pytest.mark.parametrize("case", _PREFIXES)
def test_non_grpc_input_ends_the_connection(gateway: LimitedGateway, case: str) -> None:
    reason = "tls" if case == "TLS" else "protocol"
    with counted_rejection(gateway, reason), Client(gateway.grpc) as client:
        client.send(_PREFIXES[case])
        client.socket.shutdown(1)
        client.read_to_end()


@pytest.mark.parametrize(
    "value", ["abc", "-5S", "", "5", "5x", "999999999999S", "1e3S", "99999999H"]
)
def test_a_bad_timeout_does_not_delay_the_response(gateway: LimitedGateway, value: str) -> None:
    """A timeout that cannot be parsed sets no deadline: the gateway responds or rejects the call
    promptly."""
    request = h2.request_headers(LIVE, ("grpc-timeout", value))
    with counted_or_released(gateway), Client(gateway.grpc) as client:
        hello(client)
        client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, request))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, h2.message(b"")))
        for frame in h2.frames(client.exactly):
            if frame.kind == h2.RST_STREAM or (frame.stream == 1 and frame.flags & h2.END_STREAM):
                break


@pytest.mark.parametrize("header", [("content-type", "text/html"), ("te", "gzip"), ("x", "\r\n")])
def test_invalid_grpc_headers_are_rejected(
    gateway: LimitedGateway, header: tuple[str, str]
) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(INFER, header)))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, h2.message(message())))
        client.socket.shutdown(1)
        client.read_to_end()
    if ENGINE == "own" and header[0] == "content-type":  # the rest end only the stream
        assert counted(gateway, outcome="bad_request") == before + 1


_STREAM = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(INFER))


@pytest.mark.parametrize("stage", ["headers", "half a message", "a whole message"])
def test_a_reset_releases_the_connection(gateway: LimitedGateway, stage: str) -> None:
    whole = h2.message(message(1000))
    with releases_connections(gateway, "grpc"), Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM)
        if stage != "headers":
            client.send(h2.frame(h2.DATA, 0, 1, whole[:9] if stage != "a whole message" else whole))
        client.reset()


@pytest.mark.parametrize(
    "data",
    [h2.message(b"") * 2, b"\1\0\0\0\1a"],
    ids=["two messages", "compressed without encoding"],
)
def test_bodies_without_exactly_one_message_are_rejected(
    gateway: LimitedGateway, data: bytes
) -> None:
    before = counted(gateway, outcome="bad_request")
    with releases_connections(gateway, "grpc"), Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM + h2.frame(h2.DATA, h2.END_STREAM, 1, data))
        for frame in h2.frames(client.exactly):
            if frame.kind == h2.RST_STREAM or (frame.stream == 1 and frame.flags & h2.END_STREAM):
                break
    if ENGINE == "own":
        assert counted(gateway, outcome="bad_request") == before + 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\0\0\0\0\x09abc", b"\2\0\0\0\1a"],
    ids=["no message", "a truncated prefix", "a truncated message", "flag 2"],
)
def test_calls_that_grpcio_leaves_open_end_with_the_connection(
    gateway: LimitedGateway, data: bytes
) -> None:
    """grpcio treats a truncated message as a call that was cancelled immediately, and sends no
    status. For an invalid flag, it does not always send a status. Such a call holds only a stream
    of its own connection."""
    with releases_connections(gateway, "grpc"), Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM + h2.frame(h2.DATA, h2.END_STREAM, 1, data))
