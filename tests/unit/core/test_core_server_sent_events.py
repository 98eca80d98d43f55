"""Parsing and formatting of server-sent events."""

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.server_sent_events import EventStreamParser, format_event

LINES = st.sampled_from(
    [
        b"",
        b"data",
        b"data:",
        b"data: a",
        b"data:b",
        b"data:  c",
        b": note",
        b"event: x",
        b"id: 1",
        b"d",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


def parse(parts: list[bytes], size: int = 1000) -> tuple[list[bytes], bool]:
    """Return the events of a body received in ``parts``, and whether it ends between events."""
    events = EventStreamParser(size)
    payloads = []
    for part in parts:
        events.feed(part)
        while (data := events.next_event()) is not None:
            payloads.append(data)
    return payloads, events.is_between_events


def parse_by_the_standard(lines: list[bytes]) -> list[bytes]:
    payloads, data = [], []
    for line in lines:
        if not line:
            if data:
                payloads.append(b"\n".join(data))
            data = []
        elif line == b"data" or line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    return payloads


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 200)))
def test_events_do_not_depend_on_how_the_body_is_split(
    lines: list[tuple[bytes, bytes]], positions: list[int]
) -> None:
    body = b"".join(line + end for line, end in lines)
    bounds = sorted({0, len(body), *(position for position in positions if position < len(body))})
    parts = [body[start:stop] for start, stop in itertools.pairwise(bounds)]
    assert parse(parts)[0] == parse_by_the_standard(re.split(rb"\r\n|\n|\r", body)[:-1])


@given(st.lists(st.text().map(lambda text: text.translate({10: None, 13: None}).encode())))
def test_written_events_are_read_back(texts: list[bytes]) -> None:
    body = b"".join(bytes(part) for text in texts for part in format_event(text))
    assert parse([body]) == (texts, True)


@pytest.mark.parametrize("body", [b"data: a", b"data: a\n", b"x", b"data: a\n\ndata"])
def test_an_incomplete_event_is_detected(body: bytes) -> None:
    assert not parse([body])[1]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse([b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbf\n\n"]) == (
        [b"a", b"\xef\xbb\xbf"],
        True,
    )


@pytest.mark.parametrize("piece", [b"data: x\n", b"data: xxxxxxxx", b"x", b"data:\n"])
def test_endless_events_are_rejected(piece: bytes) -> None:
    with raises_kind(Kind.TOO_LARGE):
        parse([piece] * 120, size=100)


def test_the_limit_applies_to_an_event_that_arrives_in_one_piece() -> None:
    assert parse([b"data: " + b"x" * 100 + b"\n\ndata: a\n\n"], size=100) == (
        [b"x" * 100, b"a"],
        True,
    )
    with raises_kind(Kind.TOO_LARGE):
        parse([b"data: " + b"x" * 101 + b"\n\n"], size=100)


def test_comments_and_unknown_fields_are_not_events() -> None:
    assert parse([b": note\n" * 1000, b"data: a\n\n"], size=100) == ([b"a"], True)
    assert parse([b"data: a\r", b"\ndatax: b\r\n\r\n"], size=100) == ([b"a"], True)


@pytest.mark.no_cover
@pytest.mark.parametrize("piece", [b"x" * 10, b"data: xx\n", b"\n", b"\r", b": n\n"])
def test_the_parsing_time_is_linear(piece: bytes) -> None:
    """Eight times the input takes about eight times as long, not sixty-four times."""

    def seconds(count: int) -> float:
        events = EventStreamParser(1 << 30)
        began = time.thread_time()
        for _ in range(count):
            events.feed(piece * 10)
            while events.next_event() is not None:
                pass
        return time.thread_time() - began

    short = min(seconds(2000) for _ in range(5))
    assert min(seconds(16_000) for _ in range(3)) < 40 * short
