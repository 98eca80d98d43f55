import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.core.limits import Limits
from infergate.core.wire import HttpResponse
from infergate.transport.http1 import message_head

LIMITS = Limits(headers=100, header_count=3)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
        (b"GET /" + b"x" * 200, 414),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 100, 431),
        (b"GET / HTTP/1.1\r\na: b\r\na: b\r\na: b\r\na: b\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\na: b\r\na: b\r\na: b\r\n\r\n" + b"\r\n" * 50, 400),
    ],
)
def test_invalid_heads_have_an_error_status(head: bytes, status: int) -> None:
    assert message_head.head_error(head, LIMITS).status == status


def test_header_bytes_are_limited() -> None:
    message_head.check_fields([(b"name", b"v" * 92)], LIMITS)
    with pytest.raises(message_head.HeadError, match="over the limit of 100 bytes"):
        message_head.check_fields([(b"name", b"v" * 93)], LIMITS)


def test_repeated_headers_are_joined() -> None:
    pairs = [("X-A", "1"), ("x-a", "2"), ("B", "é"), ("C", "caf\udce9")]
    assert message_head.merge_headers(pairs) == {"x-a": "1, 2", "b": "é", "c": "café"}


@given(
    st.dictionaries(st.text("abc-", min_size=1), st.text(st.characters(exclude_categories=["Cs"])))
)
def test_response_headers_are_one_line_each(headers: dict[str, str]) -> None:
    try:
        head = message_head.response_head(HttpResponse(200, headers), 3, "", b"")
    except ValueError:
        assert any(ord(c) < 32 or c == "\x7f" for value in headers.values() for c in value)
        return
    lines = head.split(b"\r\n")
    assert len(lines) == 2 + len(headers) + 2
    for line, (name, value) in zip(lines[1:], headers.items(), strict=False):
        assert line == f"{name}: {value}".encode()


def test_invalid_header_names_are_rejected() -> None:
    with pytest.raises(ValueError, match="does not allow"):
        message_head.response_head(HttpResponse(200, {"a b": "c"}), 0, "", b"")


@pytest.mark.parametrize("target", ["/a b", "/a\r\n", "", "/é"])
def test_invalid_targets_are_rejected(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        message_head.request_head("GET", target, {}, 0, "")


def test_request_heads_omit_reserved_headers() -> None:
    headers = {"host": "evil", "content-type": "a/b", "expect": "100-continue", "te": "x"}
    assert message_head.request_head("POST", "/x?y", headers, 0, "host: h\r\n") == (
        b"POST /x?y HTTP/1.1\r\nhost: h\r\ncontent-type: a/b\r\ncontent-length: 0\r\n\r\n"
    )
    assert b"content-length" not in message_head.request_head("GET", "/", {}, 0, "")


@given(st.lists(st.integers(0, 200_000), max_size=6))
def test_small_parts_are_joined_in_order(sizes: list[int]) -> None:
    parts = [bytes([65 + i]) * n for i, n in enumerate(sizes)]
    joined = message_head.join_small(b"head", parts)
    assert b"".join(joined) == b"head" + b"".join(parts)
    assert all(joined)
    assert len(joined) <= 2 * sum(n >= 32_768 for n in sizes) + 2 * (sum(sizes) // 65_536) + 2


def test_hosts_are_validated() -> None:
    valid = ["", "x", "x:80", "x:", "127.0.0.1:8000", "[::1]:8000", "a_b.c-d", "%41", "xn--e1a"]
    invalid = ["a b", "a, b", "a/b", "u@h", "h:p", "::1", "[::1", "h#", "\u00e9"]
    assert list(filter(message_head.is_host, valid + invalid)) == valid


def test_reason_phrases_are_written_and_validated() -> None:
    head = message_head.response_head(HttpResponse(405, reason="Not Allowed"), 0, "", b"")
    assert head == b"HTTP/1.1 405 Not Allowed\r\ncontent-length: 0\r\n\r\n"
    with pytest.raises(ValueError, match="reason"):
        message_head.response_head(HttpResponse(405, reason="x\r\nevil: 1"), 0, "", b"")
