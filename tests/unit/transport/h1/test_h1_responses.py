"""The response parsers of both engines: their results, agreement, limits and memory."""

import asyncio
import gc
import re
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.base import Endpoint
from infergate.transport.client.pool import ConnectionFactory
from infergate.transport.compat.aiohttp_client import AiohttpClientConnection
from infergate.transport.http1.client import H1ClientConnection
from infergate.transport.http1.exchange import HttpExchangeConnection
from infergate.transport.http1.response_head import PlainResponseParser
from infergate.transport.http1.response_reader import LenientReader
from searching import examples

LIMITS = Limits(body=50)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\n"


class FakeTransport:
    """A transport that records whether it was closed."""

    closed = False

    def write(self, data: object) -> None:
        """Discard the request."""

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close


class FakePool:
    returned = 0
    limits = LIMITS
    endpoint = Endpoint("h", 1)

    def put_back(self, connection: object) -> None:
        self.returned += 1

    def forget(self, connection: object) -> None:
        """Do nothing."""


def _h1_connection(pool: Any) -> H1ClientConnection:
    return H1ClientConnection(memoryview(bytearray(256)), pool)


def _feed(connection: HttpExchangeConnection, transport: FakeTransport, data: bytes) -> None:
    """Pass ``data`` to the connection, as its transport does."""
    while data and not transport.closed:
        if isinstance(connection, H1ClientConnection):
            buffer = connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]
        else:
            connection.data_received(data)
            return


async def _read_responses(
    create: ConnectionFactory[HttpExchangeConnection],
    pieces: Sequence[bytes],
    method: str,
    max_requests: int,
) -> list[object]:
    pool, transport = FakePool(), FakeTransport()
    connection = create(cast("Any", pool))
    connection.connection_made(cast("Any", transport))
    results: list[object] = []
    for _ in range(max_requests):
        deadline = asyncio.get_running_loop().time() + 1000
        response_task = asyncio.ensure_future(
            connection.send(HttpRequest(method, "/"), "/", deadline)
        )
        await asyncio.sleep(0)
        for piece in pieces:
            _feed(connection, transport, piece)
        if not response_task.done() and not transport.closed:
            connection.connection_lost(None)
        try:
            response = await response_task
        except GatewayError as error:
            results.append((error.kind, error.public))
            break
        results.append((response.status, dict(response.headers), bytes(join_parts(response.body))))
        results.append((pool.returned, transport.closed))
        if transport.closed or not pool.returned:
            break
    return results


_LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def _close_loop() -> Any:
    yield
    _LOOP.close()


def read_responses(
    create: ConnectionFactory[HttpExchangeConnection],
    pieces: Sequence[bytes],
    method: str = "POST",
    max_requests: int = 2,
) -> list[object]:
    return _LOOP.run_until_complete(_read_responses(create, pieces, method, max_requests))


_LINES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 404 ",
        b"HTTP/1.1 503",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 304 Not Modified",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 103 Early Hints",
        b"HTTP/1.1 101 Switching Protocols",
        b"HTTP/2.0 200 OK",
        b"ICY 200 OK",
    ]
)
_FIELDS = st.sampled_from(
    [
        b"Content-Length: 5",
        b"content-length:\t5 ",
        b"Content-Length: 0",
        b"Content-Length: 51",
        b"Content-Length: 5x",
        b"Content-Length:",
        b"Content-Length : 5",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Upgrade: websocket",
        b"Content-Type: a/b",
        b"A: b",
        b"A:",
        b"A: b\0",
        b"a: \xe9",
        b"A: b\n c",
        b"A : b",
        b"no colon",
        b" folded",
    ]
)


_BODIES = st.sampled_from(
    [
        b"",
        b"abc",
        b"abcde",
        b"5\r\nabcde\r\n0\r\n\r\n",
        b"5;x=y\r\nabcde\r\n0\r\nA: b\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"2 \r\nab\r\n3\r\ncde\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"5\nabcde\n0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
    ]
)
_EMPTY_LINE = re.compile(rb"\n\r?\n")


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(_FIELDS, max_size=4))
    if draw(st.booleans()):
        fields.append(b"Content-Length: 5")
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    head = end.join([draw(_LINES), *fields, b"", b""])
    return head + draw(_BODIES)


@settings(max_examples=examples(500))
@given(
    responses(), st.lists(st.integers(0, 200), max_size=4), st.sampled_from(["POST", "GET", "HEAD"])
)
@example(OK + b"abcde", [], "POST")
@example(OK + b"abcde", [len(OK), len(OK) + 2], "POST")
def test_both_engines_return_the_same_response(data: bytes, cuts: list[int], method: str) -> None:
    positions = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(positions) if b > a]
    expected = read_responses(AiohttpClientConnection, pieces, method)
    actual = read_responses(_h1_connection, pieces, method)
    if actual != expected:
        response, connection = cast("Any", actual)
        # If bytes follow a response, engine ``own`` returns the response and disconnects.
        assert cast("Any", expected)[0] == response or expected[0][0] is Kind.BACKEND_GARBAGE
        assert len(_EMPTY_LINE.split(data, 1)[1]) > len(response[2])
        assert connection == (0, True)


def test_bytes_after_a_response_end_the_connection() -> None:
    for pieces in ([OK + b"abcdeX"], [OK, b"abc", b"deX"], [OK + b"abcde" + OK]):
        response, (returned, closed) = cast("Any", read_responses(_h1_connection, pieces))
        assert (response[2], returned, closed) == (b"abcde", 0, True)


def test_a_repeated_plain_head_is_parsed_once() -> None:
    parser = PlainResponseParser()
    first = parser.parse(OK + b"abcde", "POST")
    assert first is not None
    assert (first.status, first.length, first.size, first.keep_alive) == (200, 5, len(OK), True)
    assert parser.parse(OK + b"other", "POST") is first
    assert parser.parse(OK + b"abcde", "HEAD") is None


@pytest.mark.parametrize(
    "head",
    [
        OK[:-1],
        OK.replace(b"1.1", b"1.0"),
        OK.replace(b"200 OK", b"100 Continue"),
        OK.replace(b"200", b"204"),
        OK.replace(b"\r\nContent-Length: 5", b""),
        OK.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        OK.replace(b": a/b", b" : a/b"),
        OK.replace(b"a/b\r", b"a/b"),
        OK.replace(b"a/b", b"a/b\r\nContent-Type: c/d"),
        OK.replace(b"a/b", b"x" * 9000),
        OK.replace(b"a/b", b"x\r\n" + b"A: b\r\n" * 100 + b"B: c"),
    ],
)
def test_unusual_heads_are_left_to_the_full_parser(head: bytes) -> None:
    assert PlainResponseParser().parse(head, "POST") is None


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nA: ", *[b"a" * 50_000] * 30],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            *[b"A: b\r\n" * 9_000] * 30,
        ],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", *[b"x" * 50_000] * 30],
        [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 257 + b"\r\n"],
        [b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" * 2000] * 30,
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
    ],
)
def test_endless_and_malformed_responses_are_rejected(pieces: list[bytes]) -> None:
    reader = LenientReader("POST", 64 * 1024)

    def feed() -> None:
        for piece in pieces:
            reader.feed(piece)

    with pytest.raises(ValueError, match=r"."):
        feed()
    assert not reader.is_complete


def test_a_body_is_delivered_as_it_arrives() -> None:
    reader = LenientReader("POST", 64 * 1024)
    reader.feed(b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        reader.feed(b"c350\r\n" + b"x" * 50_000)
        assert (len(reader.take()), reader.take()) == (50_000, b"")
        reader.feed(b"\r\n")
    reader.feed(b"0\r\nC: d\r\n\r\n")
    assert (reader.status, reader.headers["a"], "c" in reader.headers) == (200, "b", False)
    assert (reader.is_complete, reader.keep_alive) == (True, True)
    reader.feed(b"H")
    assert not reader.keep_alive


CONNECTION_TYPES: list[ConnectionFactory[HttpExchangeConnection]] = [
    _h1_connection,
    AiohttpClientConnection,
]


@pytest.mark.parametrize("create", CONNECTION_TYPES)
@pytest.mark.parametrize(
    ("line", "part"),
    [(b"Content-Length : 5", b"abc"), (b"Transfer-Encoding : chunked", b"5\r\nab")],
)
def test_a_space_after_a_field_name_does_not_hide_the_length(
    create: ConnectionFactory[HttpExchangeConnection], line: bytes, part: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n"
    ((kind, _),) = cast("Any", read_responses(create, [head + part]))
    assert kind is Kind.BACKEND_GARBAGE


@pytest.mark.parametrize("create", CONNECTION_TYPES)
@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 103 Hints", b"HTTP/1.1 199 Wait", b"HTTP/1.1 099 What"]
)
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 3\r\n\r\nxyz",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n",
    ],
)
def test_an_interim_response_has_no_body(
    create: ConnectionFactory[HttpExchangeConnection], line: bytes, body: bytes
) -> None:
    ((kind, _),) = cast("Any", read_responses(create, [line + b"\r\n" + body + OK + b"abcde"]))
    assert kind is Kind.BACKEND_GARBAGE


@pytest.mark.parametrize("line", [b"A: b", b"A: b\0", b"Content-Length: 9"])
def test_a_finished_reader_is_freed_without_garbage_collection(line: bytes) -> None:
    class WeakReader(LenientReader):
        """A ``LenientReader`` that supports weak references."""

    gc.disable()
    try:
        reader = WeakReader("POST", 64 * 1024)
        with suppress(ValueError):
            reader.feed(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\nabc")
            reader.end()
        reference = weakref.ref(reader)
        del reader
        assert reference() is None
    finally:
        gc.enable()
