"""Reading a head with a template gives the same result as parsing it in full."""

from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infergate.core.limits import Limits
from infergate.transport.http1.message_head import HeadError
from infergate.transport.http1.request_head import (
    MAX_CACHE_BYTES,
    MAX_TEMPLATE_BYTES,
    RequestHeadParser,
)
from infergate.transport.http1.response_head import PlainResponseParser
from searching import examples

LIMITS = Limits(body=1000, headers=2000, header_count=20)
NAMES = (
    b"Host",
    b"X-Id",
    b"x-id",
    b"NV-InferRequest",
    b"Content-Length",
    b"Connection",
    b"Expect",
    b"Transfer-Encoding",
    b"Upgrade",
)
VALUES = (b"1", b"2", b"a", b"close", b"keep-alive", b"100-continue", b"chunked", b"")
values = (
    st.sampled_from(VALUES)
    | st.binary(max_size=4)
    | st.text("a \t:\r\n\0\x7f\xe9", max_size=5).map(lambda text: text.encode("latin-1"))
)
separators = st.sampled_from((b": ", b":", b":\t ", b" : "))
fields = st.lists(st.tuples(st.sampled_from(NAMES), separators, values), max_size=4)


def request(lines: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"POST /a?b HTTP/1.1\r\nHost: h\r\n" + _lines(lines)


def response(lines: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n" + _lines(lines)


def _lines(lines: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"".join(b"%b%b%b\r\n" % line for line in lines) + b"\r\n"


def attributes(head: object) -> list[str]:
    """Return a head's attributes as text. A compiled class has no ``__slots__`` to list them."""
    return [str(getattr(head, name)) for name in vars(type(head)) if not name.startswith("_")]


def read_request(parser: RequestHeadParser, raw: bytes) -> Any:
    try:
        head = parser.read(raw)
    except HeadError as error:
        return error.status, error.public
    return attributes(head)


def read_response(parser: PlainResponseParser, raw: bytes) -> Any:
    head = parser.parse(raw, "POST")
    return head and attributes(head)


@given(fields, st.data())
@example([(b"X-Id", b": ", b"1"), (b"x-id", b": ", b"2")], None)
@settings(max_examples=examples(300))
def test_a_head_is_parsed_alike_after_a_similar_head(
    first: list[tuple[bytes, bytes, bytes]], data: Any
) -> None:
    if data is None:
        second = [(name, separator, value + b"0") for name, separator, value in first]
    else:
        second = [
            (name, data.draw(separators), data.draw(values)) if data.draw(st.booleans()) else line
            for line in first
            for name in (line[0],)
        ]
    request_parser = RequestHeadParser(LIMITS)
    response_parser = PlainResponseParser()
    for lines in (first, second, first):
        raw = request(lines)
        end = raw.index(b"\r\n\r\n") + 4
        assert read_request(request_parser, raw[:end]) == read_request(
            RequestHeadParser(LIMITS), raw[:end]
        )
        raw = response(lines)
        assert read_response(response_parser, raw) == read_response(PlainResponseParser(), raw)


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The created request parsers: one for each head that is parsed in full."""
    created: list[Any] = []
    create = httptools.HttpRequestParser

    def record(fields: object) -> Any:
        created.append(create(fields))
        return created[-1]

    # A compiled module ignores patches of its own functions (decision 50).
    monkeypatch.setattr(httptools, "HttpRequestParser", record)
    return created


def test_heads_that_differ_in_plain_values_are_parsed_once(parsers: list[Any]) -> None:
    parser = RequestHeadParser(LIMITS)
    for number in range(1000):
        raw = request([(b"X-Request-Id", b": ", b"%d" % number), (b"A", b": ", b"b")])
        assert parser.read(raw).headers == {"host": "h", "x-request-id": str(number), "a": "b"}
    assert len(parsers) == 1
    assert len(parser._cache) == 1, "heads that occur once do not fill the cache"


@pytest.mark.parametrize(
    "line",
    [
        (b"Content-Length", b": ", b"%d"),
        (b"Host", b": ", b"%d"),
        (b"X", b": ", b"\xe9%d"),
        (b"X", b": ", b"\t%d"),
        (b"X%d", b": ", b"a"),
    ],
)
def test_heads_that_may_not_be_templates_are_parsed_each_time(
    parsers: list[Any], line: tuple[bytes, bytes, bytes]
) -> None:
    parser = RequestHeadParser(LIMITS)
    for number in range(3):
        name, separator, value = line
        raw = _lines(
            [(name.replace(b"%d", b"%d" % number), separator, value.replace(b"%d", b"%d" % number))]
        )
        head = b"POST / HTTP/1.1\r\n" + (b"" if name == b"Host" else b"Host: h\r\n") + raw
        assert parser.read(head).error is None
    assert len(parsers) == 3


def test_long_heads_do_not_become_templates(parsers: list[Any]) -> None:
    for size, count in ((MAX_TEMPLATE_BYTES // 4, 1), (MAX_TEMPLATE_BYTES // 2, 2)):
        parser = RequestHeadParser(Limits(headers=MAX_CACHE_BYTES, header_count=20))
        parsers.clear()
        for number in range(2):
            parser.read(request([(b"A", b": ", b"b" * size), (b"X-Id", b": ", b"%d" % number)]))
        assert len(parsers) == count


def test_a_head_over_the_limit_is_refused_despite_its_template(parsers: list[Any]) -> None:
    parser = RequestHeadParser(LIMITS)
    parser.read(request([(b"X-Id", b": ", b"1")]))
    with pytest.raises(HeadError, match="over the limit"):
        parser.read(request([(b"X-Id", b": ", b"1" * LIMITS.headers)]))
