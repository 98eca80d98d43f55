"""Tests that slow clients that stall within a head, a body, a chunk or a frame, or send small
pieces, get an error in time, over HTTP and on raw sockets. (test_h2_attacks tests HTTP/2.)"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from faults import frames
from faults.low_limits import VALID_BODY, LimitedGateway, frame, good_frame, head
from faults.peer import Client
from faults.watch import MIB, counted, limited_growth, refused_by, tried_repeatedly

_STALLS = {
    "first byte": b"P",
    "header": head()[:-2],
    "no body": head(),
    "body": head() + VALID_BODY[:-1],
    "no chunk": head("Transfer-Encoding: chunked", length=None),
}


def test_a_stalled_request_gets_408(gateway: LimitedGateway) -> None:
    headers, bodies = (
        refused_by(gateway, "header_time", 2),
        refused_by(gateway, "idle_body_time", 3),
    )
    with headers, bodies, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.http)) for _ in _STALLS]
        for client, begin in zip(clients, _STALLS.values(), strict=True):
            client.send(begin)
        for client, stall in zip(clients, _STALLS, strict=True):
            answer = client.answer()
            assert answer.status == 408, stall
            assert "in time" in answer.error, stall
            assert client.read_to_end() == b"", stall


def trickle(client: Client, piece: bytes) -> bytes:
    """Send ``piece`` repeatedly until there is a response, and return its first bytes."""
    client.socket.setblocking(False)
    while True:
        client.send(piece)
        time.sleep(0.1)  # the slow client pauses for less time than the limits allow
        try:
            return client.socket.recv(65536)
        except BlockingIOError:
            continue


_PIECES = (
    (b"POST / HTTP/1.1\r\n", b"A: b\r\n"),
    (head(length=MIB), b" "),
    (head("Transfer-Encoding: chunked", length=None), b"1\r\n \r\n"),
)
"""The beginning of a request and the piece that follows repeatedly, in the head, in the body, and
in chunks."""


@tried_repeatedly
def test_a_request_in_small_pieces_ends_at_its_time_limit(gateway: LimitedGateway) -> None:
    def status_line(begin: bytes, piece: bytes) -> bytes:
        with Client(gateway.http) as client:
            client.send(begin)
            return trickle(client, piece)[:13]

    before = counted(gateway, outcome="timeout")
    headers, bodies = refused_by(gateway, "header_time"), refused_by(gateway, "idle_body_time", 2)
    with headers, bodies, ThreadPoolExecutor(len(_PIECES)) as clients:
        status_lines = list(clients.map(status_line, *zip(*_PIECES, strict=True)))
    assert status_lines == [b"HTTP/1.1 408 "] * len(_PIECES)
    assert counted(gateway, outcome="timeout") == before + len(_PIECES)


# ---- raw sockets


@tried_repeatedly
def test_a_stalled_frame_is_rejected(gateway: LimitedGateway) -> None:
    """The frames end within their length, before the message, and within it."""
    before = counted(gateway, protocol="graphpipe", outcome="timeout")
    headers, bodies = refused_by(gateway, "header_time"), refused_by(gateway, "idle_body_time", 3)
    with headers, bodies, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.raw)) for _ in range(4)]
        for client, count in zip(clients, (1, 4, 5, len(frames.FRAME) - 1), strict=True):
            client.send(frames.FRAME[:count])
        good_frame(gateway)
        for client in clients:
            assert "in time" in frames.error_in(client)
            assert client.read_to_end() == b""
    assert counted(gateway, protocol="graphpipe", outcome="timeout") == before + len(clients)


def test_a_slow_frame_is_rejected(gateway: LimitedGateway) -> None:
    with refused_by(gateway, "idle_body_time"), Client(gateway.raw) as client:
        client.send(frame(MIB))
        assert b"in time" in trickle(client, b"x")
        good_frame(gateway)


def test_long_announced_messages_cost_little(gateway: LimitedGateway) -> None:
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
