"""Fuzz tests of the request reader: the result does not depend on how the bytes are split, memory
and time are bounded, and aiohttp's parser agrees."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.transport.compat.aiohttp_parser import NOT_HTTP, request_parser
from infergate.transport.compat.aiohttp_request import AiohttpRequest
from infergate.transport.http1.request_reader import RequestReader
from infergate.transport.server.admission import Admission
from searching import examples

LIMITS = Limits(body=3000, headers=500, header_count=8)
DEFAULT_LIMITS = Limits()
SCRATCH = memoryview(bytearray(1 << 20))

_LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST /a?b HTTP/1.1",
        b"POST /a HTTP/1.0",
        b"OPTIONS * HTTP/1.1",
        b"GET http://h:1/a?b HTTP/1.1",
        b"GET /a#b?c HTTP/1.1",
        b"GET http://u@h/ HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1",
        b"GET / HTTP/2.0",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"G ET / HTTP/1.1",
        b"/ HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /" + b"x" * 600 + b" HTTP/1.1",
        b"",
    ]
)
_FIELDS = st.sampled_from(
    [
        b"Host: x",
        b"host:y:80",
        b"Host: a/b",
        b"Host:",
        b"Content-Length: 3",
        b"content-length:5",
        b"Content-Length: 3 ",
        b"Content-Length: +3",
        b"Content-Length: 3, 3",
        b"Content-Length: 0x3",
        b"Content-Length: 3_0",
        b"Content-Length: ",
        b"Content-Length: 4000",
        b"Content-Length: 18446744073709551616",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding:\tChunked ",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: chunked;a=b",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer_Encoding: chunked",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: Upgrade, keep-alive",
        b"Upgrade: websocket",
        b"Expect: 100-continue",
        b"A:b",
        b"A: \tb\t ",
        b"a: c",
        b"A: caf\xe9",
        b"A: \xc3\xa9",
        b"A:",
        b"A : b",
        b" folded",
        b"\tfolded",
        b"A: b\0c",
        b"A: b\rc",
        b"A: b\nC: d",
        b"A: b\r",
        b": b",
        b"no colon",
        b"A: " + b"x" * 490,
    ]
)
_CHUNKS = st.sampled_from(
    [
        b"3\r\nabc\r\n",
        b"0003\r\nabc\r\n",
        b"A\r\n0123456789\r\n",
        b"a;x=y\r\n0123456789\r\n",
        b'1;q="z"\r\nb\r\n',
        b"1;;\r\nb\r\n",
        b"2 \r\nab\r\n",
        b"2\nab\n",
        b"2\r\nab\n",
        b"2\r\nabc\r\n",
        b"2\r\na\r\n",
        b"1;a\nb\r\nx\r\n",
        b"-1\r\n",
        b"0x2\r\nab\r\n",
        b"ffffffffffffffff\r\n",
        b"10000000000000000\r\n",
        b"3\r\n\r\n\r\r\n",
    ]
)
_ENDS = st.sampled_from(
    [
        b"0\r\n\r\n",
        b"000\r\n\r\n",
        b"0;a\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\nX y\r\n\r\n",
        b"0\n\n",
    ]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(_FIELDS, max_size=5))
    if draw(st.integers(0, 3)):
        fields.insert(draw(st.integers(0, len(fields))), b"Host: x")
    return b"\r\n".join([draw(_LINES), *fields, b"", b""])


@st.composite
def requests_on_wire(draw: st.DrawFn) -> bytes:
    """Consecutive requests, valid and invalid, possibly corrupted."""
    valid = [
        b"POST /g HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /g HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + b"z" * 2000,
        b"POST /g HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n",
    ]
    parts = st.one_of(st.sampled_from(valid), heads(), _CHUNKS, _ENDS, st.binary(max_size=20))
    wire = bytearray(b"".join(draw(st.lists(parts, min_size=1, max_size=6))))
    for _ in range(draw(st.integers(0, 2))):
        if wire:
            position = draw(st.integers(0, len(wire) - 1))
            wire[position : position + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(wire)


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    last = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        if cut > last:
            yield data[last:cut]
            last = cut


def parse_requests(
    data: bytes, cuts: Sequence[int], limits: Limits = LIMITS, *, both_lengths: bool = False
) -> tuple[list[Any], bool]:
    """Return the parsed requests, and whether the rest was refused. If not, the last entry is the
    reader's state."""
    reader = RequestReader(SCRATCH, limits, accept_both_lengths=both_lengths)
    requests: list[Any] = []
    head = None
    for piece in pieces(data, cuts):
        remaining = piece
        while remaining:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(remaining))
            assert count
            buffer[:count] = remaining[:count]
            remaining = remaining[count:]
            reader.buffer_written(count)
            assert reader.received <= limits.body
            try:
                while True:
                    if head is None:
                        head = reader.read_head()
                        if head is None:
                            break
                        if head.error is not None:
                            return requests, True
                    body = reader.read_body()
                    if body is None:
                        break
                    head_fields = (head.method, head.path, head.query, dict(head.headers))
                    requests.append((head_fields, head.keep_alive, head.is_http10, bytes(body)))
                    head = None
            except GatewayError:
                return requests, True
            reader.get_buffer()  # moves a body in progress to its own buffer
            assert reader.untaken_bytes <= 2 * limits.headers + 600
    requests.append(("waiting", reader.untaken_bytes, reader.received if head else 0))
    return requests, False


_CUTS = st.lists(st.integers(0, 10_000), max_size=8)


@settings(max_examples=examples(500))
@given(requests_on_wire(), _CUTS, st.booleans())
@example(b"\r\n\r", [1, 2], True)
@example(b"GET / HTTP/1.1\r\nHost: x\r\nA:" + b" " * 495 + b"b\r\n\r\n", [300, 520], False)
@example(b"GET /" + b"x" * 499 + b" HTTP/1.1\r\nHost: x\r\n\r\n", [508, 512], False)
def test_requests_are_parsed_alike_however_they_are_split(
    data: bytes, cuts: list[int], both_lengths: bool
) -> None:
    expected = parse_requests(data, [], both_lengths=both_lengths)
    assert parse_requests(data, cuts, both_lengths=both_lengths) == expected
    assert parse_requests(data, range(len(data)), both_lengths=both_lengths) == expected


@settings(max_examples=examples(300))
@given(st.binary(max_size=300), _CUTS)
def test_any_bytes_are_parsed_alike_however_they_are_split(data: bytes, cuts: list[int]) -> None:
    assert parse_requests(data, cuts) == parse_requests(data, [])


_LOOP = asyncio.new_event_loop()
_LOOP.close()


def parse_with_aiohttp(data: bytes, limits: Limits) -> object:
    """Parse one request with aiohttp's parser and the checks of the compat engine."""
    parser = request_parser(_LOOP, limits)
    try:
        messages, _, _ = parser.feed_data(data)
        if not messages:
            return "incomplete"
        message, payload = messages[0]
        request = AiohttpRequest(message, payload, RequestContext(""), limits, Admission(limits))
        request.admit(message)
        request.read_body()
    except (*NOT_HTTP, GatewayError):
        return "refused"
    if not request.is_complete:
        return "incomplete"
    wire = request.wire
    head_fields = wire.method, wire.path, wire.query, dict(wire.headers)
    return head_fields, request.keep_alive, request.is_http10, b"".join(wire.body)


def parse(data: bytes, limits: Limits) -> object:
    """Parse one request. The result has the same form as that of ``parse_with_aiohttp``."""
    requests, _ = parse_requests(data, [], limits)
    if not requests:
        return "refused"
    return "incomplete" if requests[0][0] == "waiting" else requests[0]


_STRICTLY_REFUSED = (b"GET  /", b"http://u@h", b"PRI ")
"""Parts of heads that only this reader refuses, or that it refuses earlier than aiohttp."""
_HTTP10_WITH_CLOSE = {b"HTTP/1.0", b"close", b"keep-alive"}


@settings(max_examples=examples(600))
@given(heads(), st.binary(max_size=8))
@example(b"GET / HTTP/1.0\r\nHost: x\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", b"")
@example(b"GET http://h:1/a?b HTTP/1.1\r\nHost: a/b\r\n\r\n", b"")
def test_heads_are_parsed_as_by_aiohttp(head: bytes, after: bytes) -> None:
    actual, expected = parse(head + after, LIMITS), parse_with_aiohttp(head + after, LIMITS)
    if any(mark in head for mark in _STRICTLY_REFUSED):
        assert actual in {"refused", "incomplete"}
    elif isinstance(expected, tuple) and _HTTP10_WITH_CLOSE.issubset(head.split()):
        # "close" overrides "keep-alive" (RFC 9112, 9.3), except in aiohttp.
        assert actual == (expected[0], False, *expected[2:])
    else:
        assert actual == expected


_CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@settings(max_examples=examples(400))
@given(
    st.lists(_CHUNKS, max_size=4), _ENDS, st.binary(max_size=3), st.integers(0, 60), st.booleans()
)
def test_chunks_are_parsed_as_by_aiohttp(
    chunks: list[bytes], end: bytes, replacement: bytes, at: int, is_corrupted: bool
) -> None:
    body = bytearray(b"".join(chunks) + end)
    if is_corrupted:
        body[at : at + 1] = replacement
    data = _CHUNKED + bytes(body)
    actual, expected = parse(data, DEFAULT_LIMITS), parse_with_aiohttp(data, DEFAULT_LIMITS)
    if actual != expected and expected == "refused":
        # This reader ignores extensions, and parses each trailer only when its line is complete.
        assert b";" in body or actual == "incomplete"
    elif actual != expected:
        assert actual == "refused"
        assert re.search(rb"[1-9A-Fa-f][0-9A-Fa-f]{8}|[0-9A-Fa-f]{17}", body), (
            "this reader checks a chunk's size early, and allows 16 digits"
        )


_COSTLY = {
    "a head in single bytes": (b"GET / HTTP/1.1\r\nA: " + b"x" * 15_000, 1),
    "empty lines": (b"\r\n" * 10_000, 1),
    "tiny chunks": (_CHUNKED + b"1\r\nx\r\n" * 50_000, 60_000),
    "an extension in single bytes": (_CHUNKED + (b"1;" + b"x" * 200 + b"\r\nx\r\n") * 100, 1),
    "trailers in single bytes": (_CHUNKED + b"0\r\n" + b"A: b\r\n" * 99, 1),
    "equal requests": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2000, 60_000),
    "requests with different heads": (
        b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(2000)),
        60_000,
    ),
}


@pytest.mark.parametrize("case", _COSTLY)
def test_costly_input_is_parsed_in_bounded_time(case: str) -> None:
    """Two seconds are a generous bound: each case takes tens of milliseconds."""
    data, step = _COSTLY[case]
    reader = RequestReader(SCRATCH, DEFAULT_LIMITS)
    head, handled = None, 0
    start = time.process_time()
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        reader.get_buffer()[: len(piece)] = piece
        reader.buffer_written(len(piece))
        while True:
            head = head or reader.read_head()
            if head is None or reader.read_body() is None:
                break
            head = None
            handled += 1
    assert time.process_time() - start < 2
    assert handled == (2000 if "GET" in str(data[-60:]) else 0)
