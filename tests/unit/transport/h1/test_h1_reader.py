"""The HTTP/1.1 request reader without a socket, and its cache of parsed heads."""

import dataclasses

import pytest

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.transport.http1 import request_head as heads
from infergate.transport.http1.message_head import HeadError
from infergate.transport.http1.request_head import HttpRequestHead, RequestHeadParser
from infergate.transport.http1.request_reader import RequestReader

LIMITS = Limits(body=1000, headers=2000, header_count=20)
POST = b"POST /v2/a%2Fb?x=1&y HTTP/1.1\r\nHost: h:80\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def make_reader(
    limits: Limits = LIMITS, *, accept_both_lengths: bool = False, scratch: int = 4096
) -> RequestReader:
    buffer = memoryview(bytearray(scratch))
    return RequestReader(buffer, limits, accept_both_lengths=accept_both_lengths)


def write(reader: RequestReader, data: bytes) -> None:
    """Write ``data`` into the reader's buffer, as a socket does."""
    buffer = reader.get_buffer()
    count = min(len(buffer), len(data))
    buffer[:count] = data[:count]
    reader.buffer_written(count)
    assert count == len(data), "the data does not fit into the buffer"


def receive(reader: RequestReader, data: bytes) -> tuple[HttpRequestHead, Buffer | None]:
    write(reader, data)
    head = reader.read_head()
    assert head is not None
    return head, reader.read_body()


def rejected_status(data: bytes) -> int:
    with pytest.raises(HeadError) as caught:  # noqa: PT012 - raised by the call, or stored
        head, _ = receive(make_reader(), data)
        assert head.error is not None
        raise head.error
    return caught.value.status


def test_a_request_in_one_piece_is_parsed() -> None:
    head, body = receive(
        make_reader(), POST + b"X-A: 1\r\nx-a: \t2 \r\nContent-Length: 2\r\n\r\nhi"
    )
    assert (head.method, head.path, head.query) == ("POST", "/v2/a%2Fb", "x=1&y")
    assert head.headers == {"host": "h:80", "x-a": "1, 2", "content-length": "2"}
    assert (head.length, head.keep_alive, head.error, body) == (2, True, None, b"hi")
    assert (head.is_chunked, head.is_http10, head.expects_continue) == (False,) * 3


@pytest.mark.parametrize(
    "data",
    [
        POST + b"\r\n",
        POST + b"Content-Length: 900\r\n\r\n" + b"x" * 900,
        CHUNKED + b"1\r\nx\r\n0\r\n\r\n",
    ],
)
def test_a_complete_request_leaves_no_state(data: bytes) -> None:
    reader = make_reader()
    assert receive(reader, data)[1] is not None
    assert (reader._data, reader.untaken_bytes) == (b"", 0)
    assert (reader._body_buffer, reader._chunked_body) == (None, None)


@pytest.mark.parametrize(
    ("line", "keep_alive", "is_http10"),
    [
        (b"HTTP/1.1\r\nHost: x\r\n", True, False),
        (b"HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n", False, False),
        (b"HTTP/1.1\r\nHost: x\r\nConnection: x, close\r\n", False, False),
        (b"HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n", False, False),
        (b"HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n", True, False),
        (b"HTTP/1.0\r\n", False, True),
        (b"HTTP/1.0\r\nConnection: Keep-Alive\r\n", True, True),
        (b"HTTP/1.0\r\nConnection: keep-alive, close\r\n", False, True),
    ],
)
def test_keep_alive_is_read(line: bytes, keep_alive: bool, is_http10: bool) -> None:
    head, _ = receive(make_reader(), b"GET / " + line + b"\r\n")
    assert (head.keep_alive, head.is_http10) == (keep_alive, is_http10)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a#b?c", "/a#b", "c"),
        (b"//x/y", "//x/y", ""),
        (b"http://other", "/", ""),
        (b"http://other?q", "/", "q"),
        (b"HTTPS://other:1/a/b?c?d#e", "/a/b", "c?d"),
    ],
)
def test_targets_are_split_into_path_and_query(target: bytes, path: str, query: str) -> None:
    head, _ = receive(make_reader(), b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (head.path, head.query, head.error) == (path, query, None)


def test_options_accepts_an_asterisk() -> None:
    head, _ = receive(make_reader(), b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (head.path, head.error) == ("*", None)


@pytest.mark.parametrize("target", [b"*", b"http:///a", b"http://u@h/", b"x://a:b/"])
def test_invalid_targets_are_rejected(target: bytes) -> None:
    assert rejected_status(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n") == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/0.9", 400),
        (b"GET /", 400),
        (b"GET / RTSP/1.0", 400),
        (b"SOURCE / ICE/1.0", 400),
        (b"PRI * HTTP/2.0", 400),
        (b"GET / HTTP/1.2", 400),
        (b"GET / HTTP/11.1", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET /  HTTP/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
    ],
)
def test_invalid_request_lines_are_rejected(line: bytes, status: int) -> None:
    assert rejected_status(line + b"\r\nHost: x\r\n\r\n") == status


@pytest.mark.parametrize("name", [b"Content-Type", b"User-Agent", b"ETag"])
def test_a_singleton_field_must_not_be_repeated(name: bytes) -> None:
    line = name + b": a\r\n"
    assert receive(make_reader(), POST + line + b"\r\n")[0].error is None
    assert rejected_status(POST + line + line.lower() + b"\r\n") == 400


def test_a_long_body_is_received_into_its_own_buffer() -> None:
    reader = make_reader(dataclasses.replace(LIMITS, body=10**6), scratch=1000)
    head, body = receive(reader, POST + b"Content-Length: 100000\r\n\r\n" + b"a" * 500)
    assert body is None
    assert (head.length, reader.received) == (100_000, 500)
    assert len(reader.get_buffer()) == 99_500
    write(reader, b"b" * 99_499)
    assert reader.read_body() is None
    assert (len(reader.get_buffer()), reader.untaken_bytes) == (1, 0), (
        "one byte of the body is missing"
    )
    write(reader, b"c")
    result = reader.read_body()
    assert isinstance(result, memoryview)
    assert bytes(result) == b"a" * 500 + b"b" * 99_499 + b"c"
    assert len(reader.get_buffer()) == 1000
    write(reader, b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
    head = reader.read_head()  # type: ignore[assignment]
    assert (head.path, reader.read_body()) == ("/next", b"")


def test_no_buffer_is_allocated_before_the_body_is_read() -> None:
    reader = make_reader()
    write(reader, POST + b"Content-Length: 900\r\n\r\nabc")
    assert reader.read_head() is not None
    assert reader._body_buffer is None
    reader.discard()
    assert len(reader.get_buffer()) == 4096
    assert (reader.untaken_bytes, reader.received) == (0, 0)


def test_pipelined_requests_are_not_parsed_early() -> None:
    reader = make_reader()
    second = b"rubbish\r\n\r\n"
    head, body = receive(reader, CHUNKED + b"2;a=b\r\nhi\r\n0\r\nX: y\r\n\r\n" + second)
    assert (head.is_chunked, body, reader.untaken_bytes) == (True, b"hi", len(second))
    write(reader, b"more")
    with pytest.raises(HeadError):
        reader.read_head()


def test_empty_lines_before_a_request_are_skipped() -> None:
    reader = make_reader()
    for piece in (b"\r", b"\n\r\n", b"\r\n\r\n"):
        write(reader, piece)
        assert reader.read_head() is None
    write(reader, POST + b"\r\n")
    head = reader.read_head()
    assert head is not None
    assert (head.path, reader.read_body()) == ("/v2/a%2Fb", b"")


@pytest.mark.parametrize(
    "start",
    [
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH\r\n",
        b"\0",
        b"GET / HTTP/1.1\nHost: x\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c",
        b"GET / HTTP/1.1\r\nA : b",
        b"GET / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
    ],
)
@pytest.mark.parametrize("step", [1, 100])
def test_an_invalid_head_is_refused_before_it_is_complete(start: bytes, step: int) -> None:
    reader = make_reader()
    with pytest.raises(HeadError) as caught:  # noqa: PT012 - any piece may raise
        for at in range(0, len(start), step):
            write(reader, start[at : at + step])
            assert reader.read_head() is None
    assert caught.value.status == 400


@pytest.mark.parametrize("piece", [b"GET /" + b"x" * 3000, b"GET / HTTP/1.1\r\nA: " + b"b" * 3000])
def test_a_head_over_the_limit_is_refused(piece: bytes) -> None:
    reader = make_reader()
    write(reader, piece)
    with pytest.raises(HeadError) as caught:
        reader.read_head()
    assert caught.value.status in {414, 431}


def test_both_lengths_are_accepted_only_in_the_first_request() -> None:
    two_lengths = POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = make_reader(accept_both_lengths=True)
    head, body = receive(reader, two_lengths + b"3\r\nabc\r\n0\r\n\r\n")
    assert (head.keep_alive, body, "content-length" in head.headers) == (False, b"abc", False)
    for before in (b"\r\n", POST + b"\r\n"):
        reader = make_reader(accept_both_lengths=True)
        write(reader, before + two_lengths)
        with pytest.raises(HeadError):  # noqa: PT012
            assert reader.read_head() is not None
            reader.read_body()
            reader.read_head()


@pytest.mark.parametrize(
    "chunks",
    [
        b"xyz\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b" 1\r\n",
        b"0x1\r\n",
        b"1 \r\n",
        b"1_0\r\n",
        b"\r\n",
        b"1\n",
        b"1\r\r\n",
        b"1;a\nb\r\n",
        b"1;a\rb\r\n",
        b"1;\0\r\n",
        b"1;" + b"x" * 256 + b"\r\n",
        b"10000000000000000\r\n",
        b"00000000000000001\r\n",
        b"1\r\nab",
        b"1\r\na\n",
        b"1\r\na\rb",
        b"1\r\na\r\n\r\n",
        b"0\r\n\n",
        b"0\r\nA\r\n",
        b"0\r\nA : b\r\n",
        b"0\r\n A: b\r\n",
        b"0\r\nA: b\nC: d\r\n",
        b"0\r\nA: b\0\r\n",
        b"0\r\nA: b\r\r\n",
        b"0\r\n" + b"A: b\r\n" * 21,
        b"0\r\nA: " + b"b" * 2000 + b"\r\n",
        b"0\r\nA: " + b"b" * 2100,
    ],
)
@pytest.mark.parametrize("step", [1, 5000])
def test_invalid_chunks_are_rejected(chunks: bytes, step: int) -> None:
    reader = make_reader(scratch=8000)
    head, body = receive(reader, CHUNKED)
    assert (head.is_chunked, body) == (True, None)
    with pytest.raises(HeadError) as caught:  # noqa: PT012 - any piece may raise
        for start in range(0, len(chunks), step):
            write(reader, chunks[start : start + step])
            assert reader.read_body() is None
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "chunks", [b"3e9\r\n", b"100000002\r\n", b"ffffffffffffffff\r\n", b"1\r\nx\r\n3e8\r\n"]
)
def test_a_chunk_over_the_limit_is_refused_before_its_data(chunks: bytes) -> None:
    reader = make_reader()
    write(reader, CHUNKED + chunks)
    assert reader.read_head() is not None
    with raises_kind(Kind.TOO_LARGE):
        reader.read_body()


def test_a_repeated_head_is_parsed_once() -> None:
    parser = RequestHeadParser(LIMITS)
    raw = POST + b"\r\n"
    first = parser.read(raw)
    assert parser.read(bytes(bytearray(raw))) is first
    assert parser.read(raw.replace(b"x=1", b"x=2")) is not first
    assert RequestHeadParser(LIMITS).read(raw) is not first, "each connection has its own cache"


def test_refused_heads_are_not_cached() -> None:
    parser = RequestHeadParser(LIMITS)
    raw = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n"
    first = parser.read(raw)
    assert first.error is not None
    assert parser.read(raw) is not first


def test_a_head_larger_than_the_cache_is_not_cached() -> None:
    parser = RequestHeadParser(dataclasses.replace(LIMITS, headers=100_000))
    raw = POST + b"A: " + b"b" * 40_000 + b"\r\n\r\n"
    first = parser.read(raw)
    assert first.error is None
    assert parser.read(raw) is not first
    assert parser._cache._weight == 0


@pytest.mark.parametrize("lines", [0, 1, 18])
def test_the_cache_is_bounded(lines: int) -> None:
    parser = RequestHeadParser(LIMITS)
    for i in range(2000):
        parser.read(POST + b"X-%d: y\r\n" % i + b"A: b\r\n" * lines + b"\r\n")
    cache = parser._cache
    assert cache._weight <= heads.MAX_CACHE_BYTES
    assert sum(2 * len(raw) for raw in cache) <= cache._weight
    assert 1 < len(cache) <= heads.MAX_CACHE_BYTES // 256
