"""The text format prints texts as the real server did, and parses or rejects hostile text."""

import math
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtis_captures import HTTP, Exchange

from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.messages import (
    InferRequestHeader,
    InferResponseHeader,
    ModelRepositoryIndex,
    RequestStatus,
    ServerStatus,
)

KINDS = {"nv-status": RequestStatus, "nv-inferresponse": InferResponseHeader}
HEADERS = [
    (case.name, name, case.response.headers[name])
    for case in HTTP
    for name in KINDS
    if name in case.response.headers
]
WITH_TRAILER = [
    case
    for case in HTTP
    if "nv-inferresponse" in case.response.headers and b"model_name: " in case.response.body
]
STATUSES = [case for case in HTTP if case.response.body.startswith(b"id: ")]
INDEXES = [case for case in HTTP if case.response.body.startswith(b"models {")]


def test_the_captures_contain_texts() -> None:
    assert len(HEADERS) > 180
    assert len(WITH_TRAILER) > 40
    assert len(STATUSES) > 10
    assert INDEXES


@pytest.mark.parametrize(("case", "name", "expected"), HEADERS)
def test_a_header_is_printed_as_captured(case: str, name: str, expected: str) -> None:
    assert text_format.to_line(text_format.parse(KINDS[name], expected)) == expected


@pytest.mark.parametrize("case", WITH_TRAILER, ids=str)
def test_a_trailer_is_printed_as_captured(case: Exchange) -> None:
    body = case.response.body
    text = body[body.index(b"model_name: ") :].decode()
    assert text_format.to_lines(text_format.parse(InferResponseHeader, text)) == text


@pytest.mark.parametrize("case", [*STATUSES, *INDEXES], ids=str)
def test_a_body_is_printed_as_captured(case: Exchange) -> None:
    text = case.response.body.decode()
    kind = ServerStatus if case in STATUSES else ModelRepositoryIndex
    assert text_format.to_lines(text_format.parse(kind, text)) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8.0, "8"),
        (0.7, "0.7"),
        (0.1 + 0.2, "0.3"),
        (1e6, "1e+06"),
        (16777216.0, "16777216"),
        (1 / 3, "0.333333343"),
        (1e-10, "1e-10"),
        (-2.5, "-2.5"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_floats_are_printed_as_by_cpp(value: float, expected: str) -> None:
    message = InferResponseHeader()
    message.output.add().batch_classes.add().cls.add().value = value
    assert (
        text_format.to_line(message)
        == f"output {{ batch_classes {{ cls {{ value: {expected} }} }} }}"
    )


def test_bool_and_unnamed_enum_values() -> None:
    message = ServerStatus(ready_state=77)  # type: ignore[call-arg]
    message.model_status["m"].config.input.add(allow_ragged_batch=True)
    assert text_format.to_line(message) == (
        'model_status { key: "m" value { config { input { allow_ragged_batch: true } } } } '
        "ready_state: 77"
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_strings_are_printed_as_ascii_and_round_trip(value: str) -> None:
    line = text_format.to_line(RequestStatus(msg=value))
    assert line.isascii()
    assert line.isprintable()
    assert text_format.parse(RequestStatus, line).msg == value


def test_parsed_text_is_cached() -> None:
    parse = partial(text_format.parse, InferRequestHeader)
    text = 'batch_size: 1 input { name: "remembered" }'
    assert parse(text) is parse(text)
    long = text + " #" + "x" * text_format.MAX_CACHED
    parsed = parse(long)
    assert parse(long) is parsed
    for number in range(8):  # only a few long texts are cached
        parse(f"{long} {number}")
    assert parse(long) is not parsed


@pytest.mark.parametrize("escape", ["n", "t", "0", "7", "47", "303\\251", "x41", "u00e9", "\\"])
def test_an_escape_is_read(escape: str) -> None:
    parsed = text_format.parse(InferRequestHeader, f'input {{ name: "\\{escape}" }}')
    assert text_format.parse(InferRequestHeader, text_format.to_line(parsed)) == parsed
    assert len(parsed.input[0].name) == 1


@pytest.mark.parametrize(
    "escape", ["q", "8", "777", "400", "N{DASH}", "xg", "u00e", "ud800", "303"]
)
def test_an_invalid_escape_is_refused(escape: str) -> None:
    assert not is_parsed(f'input {{ name: "\\{escape}" }}')


LONG = 16_000
HOSTILE = [
    "[" * LONG,
    "input <" * (LONG // 7),
    "input {" * (LONG // 7),
    "input {}" * (LONG // 8),
    "output { cls {} } " * (LONG // 18),
    "dims:" * (LONG // 5),
    "input { dims: [" + "1," * (LONG // 2) + "1] }",
    "batch_size: " + "9" * LONG,
    "id: 0x" + "f" * LONG,
    "id: -" + " " * LONG,
    "-" * LONG,
    '"' * LONG,
    "'a'" * (LONG // 3),
    'input { name: "' + "\\x" * (LONG // 2) + '" }',
    'input { name: "\\777" }',
    'input { name: "\\ud800" }',
    "\ud800",
    "\0",
    "#" * LONG,
    " " * LONG,
    "[a.b/c] { }",
    "id: 1 id: 2",
    "batch_size: 4294967296",
    "batch_size: 1.5",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_hostile_text_is_parsed_or_rejected_quickly(text: str) -> None:
    began = time.process_time()
    is_parsed(text)
    assert time.process_time() - began < 10  # a quadratic parser takes minutes


WORDS = [
    *("input", "output", "dims", "name", "batch_size", "cls", "count", "id", "1", "0x1", "1e9"),
    *"{}<>[]:;,-#'\"\\\né",
]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    is_parsed(text)


def is_parsed(text: str) -> bool:
    """Return whether ``text`` is parsed; if so, check that the printed message is equal."""
    try:
        message = text_format.parse(InferRequestHeader, text)
    except ValueError:
        return False
    assert text_format.parse(InferRequestHeader, text_format.to_line(message)) == message
    return True


def test_an_underscore_in_a_number_is_accepted() -> None:
    assert text_format.parse(InferRequestHeader, "batch_size: 1_0").batch_size == 10


def test_printed_text_depends_on_the_message_only() -> None:
    for number in [*range(1, 600), 1, 2]:
        header = InferRequestHeader(id=number, batch_size=2)
        assert text_format.to_line(header) == f"batch_size: 2 id: {number}"
        assert text_format.to_lines(header) == f"batch_size: 2\nid: {number}\n"
        status = RequestStatus(request_id=number)
        assert text_format.to_line(status) == f"request_id: {number}"
    assert len(text_format._printed_cache) <= 512


def test_long_messages_are_not_cached() -> None:
    status = RequestStatus(msg="m" * (text_format.MAX_CACHED + 1))
    before = len(text_format._printed_cache)
    assert text_format.to_line(status) == f'msg: "{status.msg}"'
    assert len(text_format._printed_cache) == before


def test_short_messages_with_long_texts_are_not_cached() -> None:
    """A dimension takes one byte in a message; as text it would take ten times the memory."""
    header = InferResponseHeader(model_name="m")
    for _ in range(20):
        header.output.add(name="o").raw.dims.extend([1] * 80)
    assert header.ByteSize() <= text_format.MAX_CACHED
    before = len(text_format._printed_cache)
    assert len(text_format.to_lines(header)) > 8 * text_format.MAX_CACHED
    assert len(text_format._printed_cache) == before
