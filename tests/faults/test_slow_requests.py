"""Tests that slow clients that stall within a head, a body, a chunk or a frame, or send it in small
pieces, get an error in time, over HTTP and on raw sockets. (test_h2_attacks tests HTTP/2.)"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from faults import frames
from faults.peer import Client
from faults.tight import GOOD, Tight, frame, good_frame, head
from faults.watch import MIB, counted, limited_growth, refused_by, tried_repeatedly

_STALLS = {
    "first byte": (b"P", "header_time"),
    "header": (head()[:-2], "header_time"),
    "no body": (head(), "idle_body_time"),
    "body": (head() + GOOD[:-1], "idle_body_time"),
    "no chunk": (head("Transfer-Encoding: chunked", length=None), "idle_body_time"),
}


@pytest.mark.parametrize("stall", _STALLS)
def test_a_stalled_request_gets_408(gateway: Tight, stall: str) -> None:
    begin, limit = _STALLS[stall]
    with refused_by(gateway, limit), Client(gateway.http) as client:
        client.send(begin)
        answer = client.answer()
        assert answer.status == 408
        assert "in time" in answer.error
        assert client.rest() == b""


def trickle(client: Client, piece: bytes) -> bytes:
    """Send ``piece`` repeatedly until there is a response."""
    client.socket.setblocking(False)
    while True:
        client.send(piece)
        time.sleep(0.1)  # the slow client pauses for less time than the limits allow
        try:
            return client.socket.recv(65536)
        except BlockingIOError:
            continue


@pytest.mark.parametrize(
    ("begin", "piece", "limit"),
    [
        (b"POST / HTTP/1.1\r\n", b"A: b\r\n", "header_time"),
        (head(length=MIB), b" ", "idle_body_time"),
        (head("Transfer-Encoding: chunked", length=None), b"1\r\n \r\n", "idle_body_time"),
    ],
    ids=["header", "body", "chunks"],
)
@tried_repeatedly
def test_a_request_in_small_pieces_ends_at_its_time_limit(
    gateway: Tight, begin: bytes, piece: bytes, limit: str
) -> None:
    before = counted(gateway, outcome="timeout")
    with refused_by(gateway, limit), Client(gateway.http) as client:
        client.send(begin)
        assert trickle(client, piece).startswith(b"HTTP/1.1 408 ")
    assert counted(gateway, outcome="timeout") == before + 1


# ---- raw sockets


@pytest.mark.parametrize("count", [1, 4, 5, len(frames.GOOD) - 1])
@tried_repeatedly
def test_a_stalled_frame_is_rejected(gateway: Tight, count: int) -> None:
    limit = "header_time" if count < 4 else "idle_body_time"
    before = counted(gateway, protocol="graphpipe", outcome="timeout")
    with refused_by(gateway, limit), Client(gateway.raw) as client:
        client.send(frames.GOOD[:count])
        good_frame(gateway)
        assert "in time" in frames.error_in(client)
        assert client.rest() == b""
    assert counted(gateway, protocol="graphpipe", outcome="timeout") == before + 1


def test_a_slow_frame_is_rejected(gateway: Tight) -> None:
    with refused_by(gateway, "idle_body_time"), Client(gateway.raw) as client:
        client.send(frame(MIB))
        assert b"in time" in trickle(client, b"x")
        good_frame(gateway)


def test_long_announced_messages_cost_little(gateway: Tight) -> None:
    """Memory is not allocated before the bytes arrive."""
    with (
        limited_growth(gateway.pid, 16 * MIB),
        refused_by(gateway, "idle_body_time"),
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Client(gateway.raw)) for _ in range(50)]
        for client in clients:
            client.send(frame(8 * MIB) + b"x")
        good_frame(gateway)
        for client in clients:
            assert "in time" in frames.error_in(client)
