"""Tests attacks by HTTP/2 frames on ``engine: own``, whatever engine the other tests use. Each
attack ends as expected, other clients are served meanwhile, and all resources are released."""

from __future__ import annotations

import contextlib
import io
import itertools
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults import h2, watch
from faults.low_limits import HEADERS, LimitedGateway, message
from faults.low_limits import good_call as good
from faults.peer import Client
from faults.rpc import INFER, channel

PRIORITY, PUSH_PROMISE = 2, 5
REFUSED = "infergate_refused_connections_total"
REQUESTS = "infergate_requests_total"
CANCEL = b"\0\0\0\x08"
PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")


@pytest.fixture
def gateway(own_engine_gateway: LimitedGateway) -> Iterator[LimitedGateway]:
    with watch.unharmed(own_engine_gateway, lambda: good(own_engine_gateway)):
        yield own_engine_gateway


def settings(*pairs: tuple[int, int]) -> bytes:
    payload = b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in pairs)
    return h2.frame(h2.SETTINGS, 0, 0, payload)


def headers_frame(number: int, method: str = INFER, flags: int = h2.END_HEADERS) -> bytes:
    return h2.frame(h2.HEADERS, flags, number, h2.request_headers(method))


def open_streams(count: int, tail: bytes, method: str = INFER) -> bytes:
    frames = []
    for number in range(1, 2 * count, 2):
        frames += [headers_frame(number, method), tail[:5], number.to_bytes(4), tail[9:]]
    return b"".join(frames)


def window_update(number: int, size: int) -> bytes:
    return h2.frame(h2.WINDOW_UPDATE, 0, number, size.to_bytes(4))


_HELLO = h2.PREFACE + settings()
_WHOLE = h2.message(message())
_TABLE = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
ATTACKS: dict[str, tuple[bytes, int]] = {
    "rapid reset": (open_streams(5000, h2.frame(h2.RST_STREAM, 0, 0, CANCEL)), CALM),
    "rapid reset of streams": (
        open_streams(5000, h2.frame(h2.RST_STREAM, 0, 0, CANCEL), STREAM), CALM,
    ),
    "reset by WINDOW_UPDATE with increment 0": (open_streams(5000, window_update(0, 0)), CALM),
    "reset by windows that overflow": (open_streams(5000, window_update(0, 2**31 - 1)), CALM),
    "reset by truncated PRIORITY": (open_streams(5000, h2.frame(PRIORITY, 0, 0, bytes(4))), CALM),
    "reset by request headers as trailers": (
        open_streams(5000, h2.frame(h2.HEADERS, 4, 0, h2.request_headers(INFER))), CALM,
    ),
    "DATA after its own reset": (
        headers_frame(1)
        + h2.frame(h2.RST_STREAM, 0, 1, CANCEL)
        + h2.frame(h2.DATA, 0, 1, b"x") * 5000,
        CALM,
    ),
    "more streams than the limit": (b"".join(map(headers_frame, range(1, 12001, 2))), CALM),
    "empty SETTINGS": (settings() * 50_000, CALM),
    "64 settings per frame": (settings(*((4, 2**20 + n) for n in range(64))) * 5000, CALM),
    "65 settings in one frame": (settings(*((99, 1),) * 65), FRAME_SIZE),
    "PING": (h2.frame(h2.PING, 0, 0, bytes(8)) * 50_000, CALM),
    "PING acknowledgements": (h2.frame(h2.PING, h2.ACK, 0, bytes(8)) * 50_000, CALM),
    "empty DATA": (headers_frame(1) + h2.frame(h2.DATA, 0, 1) * 50_000, CALM),
    "DATA of nothing but padding": (
        headers_frame(1) + h2.frame(h2.DATA, 8, 1, b"\xff" + bytes(255)) * 20_000, CALM,
    ),
    "PRIORITY": (h2.frame(PRIORITY, 0, 1, bytes(5)) * 50_000, CALM),
    "WINDOW_UPDATE": (window_update(0, 1) * 50_000, CALM),
    "unknown frames": (h2.frame(200, 0, 0, b"x") * 50_000, CALM),
    "GOAWAY": (h2.frame(h2.GOAWAY, 0, 0, bytes(8)) * 20_000, CALM),
    "CONTINUATION, empty": (headers_frame(1, flags=0) + h2.frame(9, 0, 1) * 9000, CALM),
    "CONTINUATION, long": (headers_frame(1, flags=0) + h2.frame(9, 0, 1, bytes(8000)) * 900, CALM),
    "CONTINUATION of a byte": (headers_frame(1, flags=0) + h2.frame(9, 0, 1, b"\0") * 9000, CALM),
    "one header field per byte": (h2.frame(h2.HEADERS, 4, 1, b"\x8f" * 4 * HEADERS), CALM),
    "an HPACK bomb": (h2.frame(h2.HEADERS, 4, 1, _TABLE + b"\xbe" * 4000), CALM),
    "an HPACK table over the limit": (h2.frame(h2.HEADERS, 4, 1, b"\x3f\xe2\x1f"), COMPRESSION),
    "an endless HPACK integer": (h2.frame(h2.HEADERS, 4, 1, b"\xff" * 5000), COMPRESSION),
    "the connection's window overflows": (window_update(0, 2**31 - 1) * 2, FLOW_CONTROL),
    "WINDOW_UPDATE with increment 0": (window_update(0, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE of an idle stream": (window_update(7, 1), PROTOCOL_ERROR),
    "a stream identifier that decreases": (
        headers_frame(5, flags=5) + h2.frame(h2.RST_STREAM, 0, 5, CANCEL) + headers_frame(3),
        STREAM_CLOSED,
    ),
    "PUSH_PROMISE from a client": (h2.frame(PUSH_PROMISE, 4, 1, bytes(4)), PROTOCOL_ERROR),
    "a frame of 16 MiB": (b"\xff\xff\xff\x04\0\0\0\0\0", FRAME_SIZE),
}  # fmt: skip


def goaway_code(client: Client) -> int:
    code = None
    with contextlib.suppress(EOFError, ConnectionError):
        for each in h2.frames(client.exactly):
            if each.kind == h2.GOAWAY:
                code = int.from_bytes(each.payload[4:8])
    assert code is not None, "closed without GOAWAY"
    return code


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_ends_the_connection(gateway: LimitedGateway, attack: str) -> None:
    data, code = ATTACKS[attack]
    reason = "flood" if code == CALM else "protocol"
    ended = watch.rises(gateway, REFUSED, listener="grpc", reason=reason)
    with ended, Client(gateway.grpc) as client:
        client.send(_HELLO)
        client.socket.settimeout(0.2)
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client has sent enough
            client.send(data)
        client.socket.settimeout(watch.SECONDS)
        began = time.monotonic()
        good(gateway)
        assert time.monotonic() - began < watch.SECONDS / 2
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        if len(data) < 100_000:  # unread bytes may reset the connection before GOAWAY arrives
            assert goaway_code(client) == code
        else:
            client.read_to_end()


def ended_streams(client: Client) -> Iterator[int]:
    for each in h2.frames(client.exactly):
        if each.kind == h2.RST_STREAM or (each.kind == h2.HEADERS and each.flags & h2.END_STREAM):
            yield each.stream


BAD, TOO_LARGE, NO_CALL = "bad_request", "too_large", ""
BROKEN: dict[str, tuple[bytes, str]] = {
    "DATA beyond the window": (headers_frame(1) + h2.frame(h2.DATA, 0, 1, bytes(200_000)) * 6, BAD),
    "WINDOW_UPDATE with increment 0": (headers_frame(1) + window_update(1, 0), NO_CALL),
    "a window that overflows": (headers_frame(1) + window_update(1, 2**31 - 1), NO_CALL),
    "request headers as trailers": (headers_frame(1) + headers_frame(1), NO_CALL),
    "more header fields than the limit": (
        h2.frame(h2.HEADERS, 4, 1, h2.request_headers(INFER, *(("n", str(n)) for n in range(60)))),
        TOO_LARGE,
    ),
    "more header bytes than the limit": (
        h2.frame(h2.HEADERS, 4, 1, h2.request_headers(INFER, ("n", "x" * 2 * HEADERS))), TOO_LARGE,
    ),
    "a Content-Length that does not match": (
        h2.frame(h2.HEADERS, 5, 1, h2.request_headers(INFER, ("content-length", "3"))), NO_CALL,
    ),
    "a truncated message": (headers_frame(1) + h2.frame(h2.DATA, 1, 1, b"\0\0\0\0\x09abc"), BAD),
    "4 GiB announced": (
        headers_frame(1) + h2.frame(h2.DATA, 0, 1, b"\0\xff\xff\xff\xff"), TOO_LARGE,
    ),
}  # fmt: skip
"""Frames that end their stream, and the outcome of its call, if there is one."""


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_frames_end_only_their_stream(gateway: LimitedGateway, fault: str) -> None:
    data, outcome = BROKEN[fault]
    expected = watch.rises(gateway, REQUESTS, by=bool(outcome), protocol="v2-grpc", outcome=outcome)
    with expected, Client(gateway.grpc) as client:
        client.send(_HELLO + data)
        ended = ended_streams(client)
        assert next(ended) == 1
        client.send(headers_frame(3) + h2.frame(h2.DATA, h2.END_STREAM, 3, _WHOLE))
        assert 3 in ended
        good(gateway)


def test_unfinished_headers_end_the_connection(gateway: LimitedGateway) -> None:
    """The clients stop in the preface, before SETTINGS, in HEADERS and before CONTINUATION."""
    begun = (
        h2.PREFACE[:9],
        h2.PREFACE,
        _HELLO + headers_frame(1)[:30],
        _HELLO + headers_frame(1, flags=0),
    )
    limited = watch.refused_by(gateway, "header_time", len(begun))
    with limited, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.grpc)) for _ in begun]
        began = time.monotonic()
        for client, data in zip(clients, begun, strict=True):
            client.send(data)
        good(gateway)
        for client in clients:
            client.read_to_end()
        assert time.monotonic() - began < watch.SECONDS / 2


def test_slow_headers_end_the_connection(gateway: LimitedGateway) -> None:
    """The client sends CONTINUATION frames, one byte at a time."""
    continuation = itertools.cycle(h2.frame(9, 0, 1, b"\0"))
    with watch.refused_by(gateway, "header_time"), Client(gateway.grpc) as client:
        client.send(_HELLO + headers_frame(1, flags=0))
        began = time.monotonic()
        client.socket.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < watch.SECONDS / 2:
                client.send(bytes((next(continuation),)))
                with contextlib.suppress(TimeoutError):
                    if not client.receive():
                        break
        assert time.monotonic() - began < watch.SECONDS / 2
        good(gateway)


@watch.tried_repeatedly
def test_unfinished_messages_are_cancelled(gateway: LimitedGateway) -> None:
    """A hundred calls and streams each send part of a message; some calls send no data. All are
    cancelled, and the connection stays open. A stream without any data may stay open as well."""
    parts = (b"\0\0", b"\0\0\0\x40\0" + b"x" * 1000)
    begun = [(INFER, b""), *itertools.product((INFER, STREAM), parts)]
    numbers = range(1, 200, 2)
    limited = watch.refused_by(gateway, "idle_body_time", len(numbers))
    with limited, Client(gateway.grpc) as client:
        client.send(_HELLO)
        for number, (method, part) in zip(numbers, itertools.cycle(begun), strict=False):
            client.send(headers_frame(number, method))
            if part:
                client.send(h2.frame(h2.DATA, 0, number, part))
        good(gateway)
        ended, pending = ended_streams(client), set(numbers)
        while pending:
            pending.discard(next(ended))
        client.send(headers_frame(201) + h2.frame(h2.DATA, h2.END_STREAM, 201, _WHOLE))
        assert 201 in ended


def test_slow_messages_are_cancelled(gateway: LimitedGateway) -> None:
    """No pause is as long as the limit, but the rate is below the minimum body rate."""
    trickle = h2.frame(h2.DATA, 0, 1, b"x")

    def is_ended(method: str) -> bool:
        received, began = b"", time.monotonic()
        with Client(gateway.grpc) as client:
            client.send(
                _HELLO + headers_frame(1, method) + h2.frame(h2.DATA, 0, 1, b"\0\0\x10\0\0")
            )
            client.socket.settimeout(0.1)  # this client is the slow sender
            while time.monotonic() - began < watch.SECONDS:
                client.send(trickle)
                with contextlib.suppress(TimeoutError):
                    received += client.receive()
                if b"grpc-status" in received or any(
                    each.stream == 1 and each.kind == h2.RST_STREAM
                    for each in complete_frames(received)
                ):
                    return True
        return False

    limited = watch.refused_by(gateway, "idle_body_time", 2)
    with limited, ThreadPoolExecutor(2) as clients:
        assert all(clients.map(is_ended, (INFER, STREAM)))
        good(gateway)


def complete_frames(data: bytes) -> Iterator[h2.Frame]:
    stream = io.BytesIO(data)

    def exactly(count: int) -> bytes:
        piece = stream.read(count)
        if len(piece) < count:
            raise EOFError
        return piece

    with contextlib.suppress(EOFError):
        yield from h2.frames(exactly)


def test_clients_that_disappear_without_a_fin_are_disconnected(gateway: LimitedGateway) -> None:
    """Twenty clients open fifty streams each. If the streams stayed open, no stream would be left
    for other clients."""
    before = watch.descriptors(gateway.pid)
    closed = watch.rises(gateway, "infergate_idle_connections_closed_total", listener="grpc")
    with closed, contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(Client(gateway.grpc))
            client.send(
                _HELLO + b"".join(headers_frame(number, STREAM) for number in range(1, 100, 2))
            )
        good(gateway)
        watch.until(
            lambda: watch.descriptors(gateway.pid) <= before, "all connections are released"
        )
        assert len(stream_responses(gateway)) == 3


def stream_responses(gateway: LimitedGateway) -> list[bytes]:
    with channel(gateway.grpc) as rpc_channel:
        return list(rpc_channel.stream_stream(STREAM)(iter([message()] * 3), timeout=watch.SECONDS))


@watch.tried_repeatedly
def test_a_reader_with_a_window_of_one_byte_is_served(gateway: LimitedGateway) -> None:
    """Each DATA frame has one byte, and the response takes as long as the client reads."""
    whole = h2.message(message(200))
    handled = watch.rises(gateway, REQUESTS, protocol="v2-grpc", outcome="ok")
    with handled, Client(gateway.grpc) as client:
        client.send(h2.PREFACE + settings((4, 1)) + headers_frame(1))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, whole))
        received = 0
        for each in h2.frames(client.exactly):
            if each.kind == h2.DATA:
                assert len(each.payload) == 1
                received += 1
                client.send(window_update(1, 1))
                if received % 100 == 0:
                    good(gateway)
            if each.kind == h2.HEADERS and each.flags & h2.END_STREAM:
                break
        assert received > 400


@pytest.mark.parametrize("window", [0, 1, 2**31 - 1], ids=["no window", "one byte", "the maximum"])
def test_readers_that_stop_are_disconnected(gateway: LimitedGateway, window: int) -> None:
    """The client does not read a hundred responses of 128 KiB. The gateway resets their streams, or
    closes the connection."""
    whole = h2.message(message(64 * 1024))
    slow = watch.rises(gateway, REFUSED, listener="grpc", reason="slow_reader")
    if window > 1:  # the gateway does not wait if the socket buffers hold all responses
        slow = watch.releases_connections(gateway, "grpc")
    with slow, Client(gateway.grpc) as client:
        client.send(h2.PREFACE + settings((4, window)))
        if window > 1:
            client.send(window_update(0, 2**30))
        with contextlib.suppress(ConnectionError):
            for number in range(1, 200, 2):
                client.send(headers_frame(number) + h2.frame(h2.DATA, h2.END_STREAM, number, whole))
        good(gateway)
        if window > 1:
            watch.until(
                lambda: "infergate_in_flight_requests 0.0" in gateway.metrics(),
                "requests are cancelled",
            )
            with contextlib.suppress(ConnectionError):
                client.read_to_end()
            return
        resets = (each for each in h2.frames(client.exactly) if each.kind == h2.RST_STREAM)
        assert len({next(resets).stream for _ in range(100)}) == 100
