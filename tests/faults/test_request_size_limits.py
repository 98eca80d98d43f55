"""Tests requests at and over each size limit, over HTTP, over gRPC and on raw sockets."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from e2e.running import ENGINE
from faults import frames
from faults.low_limits import (
    BODY,
    COUNT,
    HEADERS,
    PATH,
    VALID_BODY,
    LimitedGateway,
    frame,
    good_frame,
    head,
    message,
)
from faults.peer import Client
from faults.rpc import call, channel
from faults.watch import MIB, counted, limited_growth, refused_by, rises

at_and_over_the_limit = pytest.mark.parametrize("over", [0, 1])


def outcome(
    gateway: LimitedGateway, over: int, limit: str, under: str = "ok"
) -> contextlib.AbstractContextManager[None]:
    """Check that requests over the limit are counted as rejected by ``limit``, and that other
    requests have the outcome ``under``."""
    if over:
        return refused_by(gateway, limit)
    return rises(gateway, "infergate_requests_total", outcome=under)


# ---- HTTP


@at_and_over_the_limit
def test_the_number_of_headers_is_limited(gateway: LimitedGateway, over: int) -> None:
    lines = [f"A{i}: b" for i in range(COUNT - 2 + over)]
    with outcome(gateway, over, "header_count"), Client(gateway.http) as client:
        client.send(head(*lines) + VALID_BODY)
        answer = client.answer()
        assert answer.status == (431 if over else 200)
        assert not over or str(COUNT) in answer.error


def filling(over: int, path: str = PATH) -> list[str]:
    """Return four header lines that together reach the maximum size, plus ``over`` bytes."""
    others = len(head(*[f"A{i}: " for i in range(4)])) - len(f"POST {path} HTTP/1.1\r\n\r\n")
    each, left = divmod(HEADERS - others + over, 4)
    return [f"A{i}: " + "x" * (each + (left if i == 0 else 0)) for i in range(4)]


@at_and_over_the_limit
def test_the_bytes_of_headers_are_limited(gateway: LimitedGateway, over: int) -> None:
    with outcome(gateway, over, "headers"), Client(gateway.http) as client:
        client.send(head(*filling(over)) + VALID_BODY)
        answer = client.answer()
        assert answer.status == (431 if over else 200)
        assert not over or str(HEADERS) in answer.error


@at_and_over_the_limit
def test_the_length_of_the_target_is_limited(gateway: LimitedGateway, over: int) -> None:
    """A target is rejected as too long, or is not found."""
    path = "/" + "x" * (HEADERS - 1 + over)
    with outcome(gateway, over, "headers", "not_found"), Client(gateway.http) as client:
        client.send(head(path=path) + VALID_BODY)
        assert client.answer().status == (414 if over else 404)


def test_endless_headers_are_rejected(gateway: LimitedGateway) -> None:
    limited, bounded_memory = refused_by(gateway, "headers"), limited_growth(gateway.pid, 16 * MIB)
    with limited, bounded_memory, Client(gateway.http) as client:
        client.send(b"GET / HTTP/1.1\r\nA: " + b"x" * 60_000)
        assert client.answer().status == 431


def test_a_body_announced_too_large_is_rejected_before_it_arrives(gateway: LimitedGateway) -> None:
    with refused_by(gateway, "body"), Client(gateway.http) as client:
        client.send(head(length=BODY + 1))
        assert client.answer().status == 413


def test_the_admin_listener_has_the_same_limits(gateway: LimitedGateway) -> None:
    with refused_by(gateway, "headers"), Client(gateway.admin) as client:
        client.send(head(*filling(1)))
        assert client.answer().status == 431
    with refused_by(gateway, "header_count"), Client(gateway.admin) as client:
        client.send(head(*[f"A{i}: b" for i in range(COUNT)]))
        assert client.answer().status == 431
    with refused_by(gateway, "body"), Client(gateway.admin) as client:
        client.send(head(length=BODY + 1, path="/reload"))
        assert client.answer().status == 413


# ---- gRPC


@pytest.mark.parametrize(("value", "code"), [(1000, "OK"), (2 * HEADERS, "RESOURCE_EXHAUSTED")])
def test_the_bytes_of_metadata_are_limited(gateway: LimitedGateway, value: int, code: str) -> None:
    is_counted = ENGINE == "own" and code != "OK"
    with outcome(gateway, is_counted, "headers"), channel(gateway.grpc) as rpc_channel:
        status = call(rpc_channel, message(), metadata=[("x-much", "x" * value)])
    assert status.code is grpc.StatusCode[code]


@pytest.mark.skipif(ENGINE == "compat", reason="grpcio does not count metadata entries")
@pytest.mark.parametrize(("count", "code"), [(10, "OK"), (COUNT, "RESOURCE_EXHAUSTED")])
def test_the_number_of_metadata_entries_is_limited(
    gateway: LimitedGateway, count: int, code: str
) -> None:
    with outcome(gateway, code != "OK", "header_count"), channel(gateway.grpc) as rpc_channel:
        status = call(rpc_channel, message(), metadata=[(f"x-{i}", "x") for i in range(count)])
    assert status.code is grpc.StatusCode[code]


def test_a_message_over_the_limit_is_rejected(gateway: LimitedGateway) -> None:
    with outcome(gateway, ENGINE == "own", "body"), channel(gateway.grpc) as rpc_channel:
        assert call(rpc_channel, message(BODY // 2 - 100)).code is grpc.StatusCode.OK
        status = call(rpc_channel, message(BODY // 2 + 100_000))
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---- raw sockets


@pytest.mark.parametrize("length", [BODY + 1, 2**31, 2**32 - 1])
def test_a_frame_over_the_limit_is_rejected_before_it_arrives(
    gateway: LimitedGateway, length: int
) -> None:
    before = counted(gateway, outcome="too_large")
    limited, bounded_memory = refused_by(gateway, "body"), limited_growth(gateway.pid, 4 * MIB)
    with limited, bounded_memory, Client(gateway.raw) as client:
        client.send(frame(length))
        assert f"the limit is {BODY}" in frames.error_in(client)
        good_frame(gateway)
    assert counted(gateway, outcome="too_large") == before + 1


@pytest.mark.parametrize("sent", [20_000, 5_000_000])
def test_a_rejected_frame_takes_no_memory_when_it_arrives(
    gateway: LimitedGateway, sent: int
) -> None:
    limited, bounded_memory = refused_by(gateway, "body"), limited_growth(gateway.pid, 4 * MIB)
    with limited, bounded_memory, Client(gateway.raw) as client:
        client.send(frame(100 * MIB) + bytes(sent))
        assert f"the limit is {BODY}" in frames.error_in(client)
        client.send(bytes(sent))
        good_frame(gateway)


def test_empty_and_malformed_frames_are_rejected_without_a_close(gateway: LimitedGateway) -> None:
    before = counted(gateway, protocol="graphpipe", outcome="bad_request")
    with Client(gateway.raw) as client:
        for body in (b"", b"\0", b"nonsense", bytes(64), b"\xff" * 1000):
            client.send(frame(len(body)) + body)
            assert frames.error_in(client) != ""
        client.send(frames.FRAME)
        assert frames.error_in(client) == ""
    assert counted(gateway, protocol="graphpipe", outcome="bad_request") == before + 5
