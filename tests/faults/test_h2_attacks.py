"""Tests attacks by HTTP/2 frames on ``engine: own``, whatever engine the other tests use. Each
attack has the expected end, other clients are served in this time, and all resources are
released."""

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
REFUSED, LIMITED = "infergate_refused_connections_total", "infergate_refused_requests_total"
REQUESTS = "infergate_requests_total"
CANCEL = b"\0\0\0\x08"
PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")


@pytest.fixture
def gateway(own: LimitedGateway) -> Iterator[LimitedGateway]:
    with watch.unharmed(own, lambda: good(own)):
        yield own


def settings(*pairs: tuple[int, int]) -> bytes:
    response = b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in pairs)
    return h2.frame(h2.SETTINGS, 0, 0, response)


def opened(number: int, method: str = INFER, flags: int = h2.END_HEADERS) -> bytes:
    return h2.frame(h2.HEADERS, flags, number, h2.request_headers(method))


def many(count: int, *pieces: bytes) -> bytes:
    return b"".join(pieces) * count


def streams(count: int, tail: bytes, method: str = INFER) -> bytes:
    found = []
    for number in range(1, 2 * count, 2):
        found += [opened(number, method), tail[:5], number.to_bytes(4), tail[9:]]
    return b"".join(found)


def window(number: int, size: int) -> bytes:
    return h2.frame(h2.WINDOW_UPDATE, 0, number, size.to_bytes(4))


_HELLO = h2.PREFACE + settings()
_WHOLE = h2.message(message())
_TABLE = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
ATTACKS: dict[str, tuple[bytes, int]] = {
    "rapid reset": (streams(5000, h2.frame(h2.RST_STREAM, 0, 0, CANCEL)), CALM),
    "rapid reset of streams": (streams(5000, h2.frame(h2.RST_STREAM, 0, 0, CANCEL), STREAM), CALM),
    "reset by breaking rules": (streams(5000, window(0, 0)), CALM),
    "reset by windows that overflow": (streams(5000, window(0, 2**31 - 1)), CALM),
    "reset by priorities cut short": (streams(5000, h2.frame(PRIORITY, 0, 0, bytes(4))), CALM),
    "reset by headers for trailers": (
        streams(5000, h2.frame(h2.HEADERS, 4, 0, h2.request_headers(INFER))), CALM,
    ),
    "DATA after its own reset": (
        opened(1)
        + h2.frame(h2.RST_STREAM, 0, 1, CANCEL)
        + many(5000, h2.frame(h2.DATA, 0, 1, b"x")),
        CALM,
    ),
    "more streams than there may be": (many(1, *(opened(n) for n in range(1, 12001, 2))), CALM),
    "settings": (many(50_000, settings()), CALM),
    "settings that say much": (many(5000, settings(*((4, 2**20 + n) for n in range(64)))), CALM),
    "settings that say too much": (settings(*((99, 1),) * 65), FRAME_SIZE),
    "PING": (many(50_000, h2.frame(h2.PING, 0, 0, bytes(8))), CALM),
    "answers to PING": (many(50_000, h2.frame(h2.PING, h2.ACK, 0, bytes(8))), CALM),
    "empty DATA": (opened(1) + many(50_000, h2.frame(h2.DATA, 0, 1)), CALM),
    "DATA of nothing but padding": (
        opened(1) + many(20_000, h2.frame(h2.DATA, 8, 1, b"\xff" + bytes(255))), CALM,
    ),
    "priorities": (many(50_000, h2.frame(PRIORITY, 0, 1, bytes(5))), CALM),
    "window updates": (many(50_000, window(0, 1)), CALM),
    "unknown frames": (many(50_000, h2.frame(200, 0, 0, b"x")), CALM),
    "goodbyes": (many(20_000, h2.frame(h2.GOAWAY, 0, 0, bytes(8))), CALM),
    "CONTINUATION, empty": (opened(1, flags=0) + many(9000, h2.frame(9, 0, 1)), CALM),
    "CONTINUATION, long": (opened(1, flags=0) + many(900, h2.frame(9, 0, 1, bytes(8000))), CALM),
    "CONTINUATION of a byte": (opened(1, flags=0) + many(9000, h2.frame(9, 0, 1, b"\0")), CALM),
    "a field of each byte": (h2.frame(h2.HEADERS, 4, 1, b"\x8f" * 4 * HEADERS), CALM),
    "an HPACK bomb": (h2.frame(h2.HEADERS, 4, 1, _TABLE + b"\xbe" * 4000), CALM),
    "a table that is too large": (h2.frame(h2.HEADERS, 4, 1, b"\x3f\xe2\x1f"), COMPRESSION),
    "an integer without end": (h2.frame(h2.HEADERS, 4, 1, b"\xff" * 5000), COMPRESSION),
    "the connection's window overflows": (window(0, 2**31 - 1) * 2, FLOW_CONTROL),
    "a window that grows by nothing": (window(0, 0), PROTOCOL_ERROR),
    "a window of an idle stream": (window(7, 1), PROTOCOL_ERROR),
    "a number again": (
        opened(5, flags=5) + h2.frame(h2.RST_STREAM, 0, 5, CANCEL) + opened(3), STREAM_CLOSED,
    ),
    "a stream opened by a push": (h2.frame(PUSH_PROMISE, 4, 1, bytes(4)), PROTOCOL_ERROR),
    "a frame of 16 MiB": (b"\xff\xff\xff\x04\0\0\0\0\0", FRAME_SIZE),
}  # fmt: skip


def goaway(client: Client) -> int:
    code = None
    with contextlib.suppress(EOFError, ConnectionError):
        for each in h2.frames(client.exactly):
            if each.kind == h2.GOAWAY:
                code = int.from_bytes(each.payload[4:8])
    assert code is not None, "closed without a frame"
    return code


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_that_end_the_connection(gateway: LimitedGateway, attack: str) -> None:
    reported, code = ATTACKS[attack]
    reason = "flood" if code == CALM else "protocol"
    ended = watch.rises(gateway, REFUSED, listener="grpc", reason=reason)
    with ended, Client(gateway.grpc) as client:
        client.send(_HELLO)
        client.socket.settimeout(0.2)
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client has sent enough
            client.send(reported)
        client.socket.settimeout(watch.SECONDS)
        began = time.monotonic()
        good(gateway)
        assert time.monotonic() - began < watch.SECONDS / 2
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        if len(reported) < 100_000:  # otherwise the unread bytes may reset the connection
            assert goaway(client) == code
        else:
            client.read_to_end()


def ends(client: Client) -> Iterator[int]:
    for each in h2.frames(client.exactly):
        if each.kind == h2.RST_STREAM or (each.kind == h2.HEADERS and each.flags & h2.END_STREAM):
            yield each.stream


BAD, TOO_LARGE, NO_CALL = "bad_request", "too_large", ""
BROKEN: dict[str, tuple[bytes, str]] = {
    "DATA beyond the window": (opened(1) + h2.frame(h2.DATA, 0, 1, bytes(200_000)) * 6, BAD),
    "window by nothing": (opened(1) + window(1, 0), NO_CALL),
    "window overflows": (opened(1) + window(1, 2**31 - 1), NO_CALL),
    "headers twice": (opened(1) + opened(1), NO_CALL),
    "fields": (
        h2.frame(h2.HEADERS, 4, 1, h2.request_headers(INFER, *(("n", str(n)) for n in range(60)))),
        TOO_LARGE,
    ),
    "metadata": (
        h2.frame(h2.HEADERS, 4, 1, h2.request_headers(INFER, ("n", "x" * 2 * HEADERS))), TOO_LARGE,
    ),
    "length": (
        h2.frame(h2.HEADERS, 5, 1, h2.request_headers(INFER, ("content-length", "3"))), NO_CALL,
    ),
    "cut": (opened(1) + h2.frame(h2.DATA, 1, 1, b"\0\0\0\0\x09abc"), BAD),
    "4 GiB announced": (opened(1) + h2.frame(h2.DATA, 0, 1, b"\0\xff\xff\xff\xff"), TOO_LARGE),
}  # fmt: skip
"""The status of an attacked call."""


@pytest.mark.parametrize("fault", BROKEN)
def test_attacks_that_end_a_stream(gateway: LimitedGateway, fault: str) -> None:
    reported, outcome = BROKEN[fault]
    response = watch.rises(gateway, REQUESTS, by=bool(outcome), protocol="v2-grpc", outcome=outcome)
    with response, Client(gateway.grpc) as client:
        client.send(_HELLO + reported)
        ended = ends(client)
        assert next(ended) == 1
        client.send(opened(3) + h2.frame(h2.DATA, h2.END_STREAM, 3, _WHOLE))
        assert 3 in ended
        good(gateway)


def test_endless_headers_end_the_connection(gateway: LimitedGateway) -> None:
    """The clients stop in the preface, before the settings, in headers and before a
    CONTINUATION."""
    begun = (h2.PREFACE[:9], h2.PREFACE, _HELLO + opened(1)[:30], _HELLO + opened(1, flags=0))
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
    """The client sends a CONTINUATION of one byte from time to time."""
    more = itertools.cycle(h2.frame(9, 0, 1, b"\0"))
    with watch.refused_by(gateway, "header_time"), Client(gateway.grpc) as client:
        client.send(_HELLO + opened(1, flags=0))
        began = time.monotonic()
        client.socket.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < watch.SECONDS / 2:
                client.send(bytes((next(more),)))
                with contextlib.suppress(TimeoutError):
                    if not client.receive():
                        break
        assert time.monotonic() - began < watch.SECONDS / 2
        good(gateway)


@watch.tried_repeatedly
def test_unfinished_messages_are_cancelled(gateway: LimitedGateway) -> None:
    """There are a hundred calls and streams, each with a part of a message, or calls with nothing.
    All are cancelled, and the connection stays open. A stream without any data may stay open as
    well."""
    parts = (b"\0\0", b"\0\0\0\x40\0" + b"x" * 1000)
    begun = [(INFER, b""), *itertools.product((INFER, STREAM), parts)]
    numbers = range(1, 200, 2)
    limited = watch.refused_by(gateway, "idle_body_time", len(numbers))
    with limited, Client(gateway.grpc) as client:
        client.send(_HELLO)
        for number, (method, part) in zip(numbers, itertools.cycle(begun), strict=False):
            client.send(opened(number, method))
            if part:
                client.send(h2.frame(h2.DATA, 0, number, part))
        good(gateway)
        ended, left = ends(client), set(numbers)
        while left:
            left.discard(next(ended))
        client.send(opened(201) + h2.frame(h2.DATA, h2.END_STREAM, 201, _WHOLE))
        assert 201 in ended


def test_slow_messages_are_cancelled(gateway: LimitedGateway) -> None:
    """No pause is as long as the limit, but the rate is below the minimum body rate."""
    trickle = h2.frame(h2.DATA, 0, 1, b"x")

    def is_ended(method: str) -> bool:
        came, began = b"", time.monotonic()
        with Client(gateway.grpc) as client:
            client.send(_HELLO + opened(1, method) + h2.frame(h2.DATA, 0, 1, b"\0\0\x10\0\0"))
            client.socket.settimeout(0.1)  # this client is the slow sender
            while time.monotonic() - began < watch.SECONDS:
                client.send(trickle)
                with contextlib.suppress(TimeoutError):
                    came += client.receive()
                if b"grpc-status" in came or any(
                    each.stream == 1 and each.kind == h2.RST_STREAM for each in whole_frames(came)
                ):
                    return True
        return False

    limited = watch.refused_by(gateway, "idle_body_time", 2)
    with limited, ThreadPoolExecutor(2) as clients:
        assert all(clients.map(is_ended, (INFER, STREAM)))
        good(gateway)


def whole_frames(came: bytes) -> Iterator[h2.Frame]:
    read = io.BytesIO(came)

    def exactly(count: int) -> bytes:
        found = read.read(count)
        if len(found) < count:
            raise EOFError
        return found

    with contextlib.suppress(EOFError):
        yield from h2.frames(exactly)


def test_clients_that_disappear_without_a_fin_are_disconnected(gateway: LimitedGateway) -> None:
    """There are twenty connections with fifty streams each. If they were kept, no stream would be
    left for other clients."""
    before = watch.descriptors(gateway.pid)
    closed = watch.rises(gateway, "infergate_idle_connections_closed_total", listener="grpc")
    with closed, contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(Client(gateway.grpc))
            client.send(_HELLO + b"".join(opened(number, STREAM) for number in range(1, 100, 2)))
        good(gateway)
        watch.until(
            lambda: watch.descriptors(gateway.pid) <= before, "all connections are released"
        )
        assert len(stream_attacks(gateway)) == 3


def stream_attacks(gateway: LimitedGateway) -> list[bytes]:
    with channel(gateway.grpc) as rpc_channel:
        return list(rpc_channel.stream_stream(STREAM)(iter([message()] * 3), timeout=watch.SECONDS))


@watch.tried_repeatedly
def test_a_reader_with_a_window_of_one_byte_is_served(gateway: LimitedGateway) -> None:
    """The client is served as slowly as it reads. Each byte costs one frame."""
    whole = h2.message(message(200))
    handled = watch.rises(gateway, REQUESTS, protocol="v2-grpc", outcome="ok")
    with handled, Client(gateway.grpc) as client:
        client.send(h2.PREFACE + settings((4, 1)) + opened(1))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, whole))
        got = 0
        for each in h2.frames(client.exactly):
            if each.kind == h2.DATA:
                assert len(each.payload) == 1
                got += 1
                client.send(window(1, 1))
                if got % 100 == 0:
                    good(gateway)
            if each.kind == h2.HEADERS and each.flags & h2.END_STREAM:
                break
        assert got > 400


@pytest.mark.parametrize("first", [0, 1, 2**31 - 1], ids=["closed", "a byte", "wide"])
def test_readers_that_stop_are_disconnected(gateway: LimitedGateway, first: int) -> None:
    """There are a hundred unread responses of 128 KiB. The streams or the connection are closed."""
    whole = h2.message(message(64 * 1024))
    slow = watch.rises(gateway, REFUSED, listener="grpc", reason="slow_reader")
    if first > 1:  # no wait if the socket buffers hold all of it
        slow = watch.releases_connections(gateway, "grpc")
    with slow, Client(gateway.grpc) as client:
        client.send(h2.PREFACE + settings((4, first)))
        if first > 1:
            client.send(window(0, 2**30))
        with contextlib.suppress(ConnectionError):
            for number in range(1, 200, 2):
                client.send(opened(number) + h2.frame(h2.DATA, h2.END_STREAM, number, whole))
        good(gateway)
        if first > 1:
            watch.until(
                lambda: "infergate_in_flight_requests 0.0" in gateway.metrics(),
                "requests are cancelled",
            )
            with contextlib.suppress(ConnectionError):
                client.read_to_end()
            return
        resets = (each for each in h2.frames(client.exactly) if each.kind == h2.RST_STREAM)
        assert len({next(resets).stream for _ in range(100)}) == 100
