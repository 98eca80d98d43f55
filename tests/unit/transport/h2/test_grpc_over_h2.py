"""gRPC in HTTP/2 bodies and headers: messages, timeouts, statuses, metadata."""

import asyncio
import gzip
import random
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infergate.core.errors import GatewayError
from infergate.core.inflation import PIECE_BYTES
from infergate.core.limits import MIB, Limits
from infergate.core.memory import UNLIMITED
from infergate.transport.grpc import headers, metadata
from infergate.transport.grpc.framing import (
    PREFIX,
    InvalidMessageError,
    MessageReader,
    MessageTooLongError,
    SingleMessageReader,
)
from infergate.transport.grpc.headers import RequestHeaders, ResponseHeaders, interpret_request
from infergate.transport.http2 import header_blocks
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.net.deferred_inflation import DeferredInflation
from memory_budget import Budget
from searching import examples

MAX_BYTES = 100_000


def block(*pairs: tuple[str, str]) -> HeaderBlock:
    return HeaderBlockDecoder(100_000).decode(header_blocks.encode_block(*pairs))


def request_headers(
    *extra: tuple[str, str], limits: Limits | None = None, **overrides: str
) -> RequestHeaders:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": "/a/b",
        "content-type": "application/grpc", "te": "trailers", **overrides,
    }  # fmt: skip
    pairs = [(name, value) for name, value in fields.items() if value]
    return interpret_request(block(*pairs, *extra), limits or Limits())


def read_all(reader: MessageReader) -> list[tuple[bytes, int]]:
    """Return the complete messages with their lengths in the body."""
    messages = []
    while (received := reader.next_message()) is not None:
        assert not isinstance(received[0], DeferredInflation)
        messages.append((bytes(received[0]), received[1]))
    return messages


def framed(data: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(data).to_bytes(4) + data


@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(1, 700), max_size=12))
def test_one_message_however_it_is_split(data: bytes, cuts: list[int]) -> None:
    reader, body, start = SingleMessageReader(MAX_BYTES, ""), memoryview(framed(data)), 0
    for cut in [*cuts, len(body)]:
        assert reader.message is None or start >= len(body)
        reader.add([body[start : start + cut]])
        start += cut
    assert reader.message is not None
    assert bytes(reader.message) == data
    assert reader.length == len(data)


@given(
    parts=st.lists(st.binary(max_size=300), max_size=6),
    cuts=st.lists(st.integers(1, 400), max_size=9),
)
def test_many_messages_however_they_are_split(parts: list[bytes], cuts: list[int]) -> None:
    reader, start, messages = MessageReader(MAX_BYTES, ""), 0, []
    body = b"".join(map(framed, parts))
    for cut in [*cuts, len(body)]:
        reader.add([body[start : start + cut]])
        start += cut
        messages += read_all(reader)
    assert messages == [(part, len(part) + 5) for part in parts]
    assert reader.is_empty


@given(
    parts=st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    start=st.integers(0, 200),
    cuts=st.lists(st.integers(1, 20), max_size=9),
)
def test_messages_end_with_the_current_one_after_a_stop(
    parts: list[bytes], start: int, cuts: list[int]
) -> None:
    """A message is current when its length prefix has been received."""
    reader, body = MessageReader(MAX_BYTES, ""), b"".join(map(framed, parts))
    reader.add([body[:start]])
    reader.stop_after_current()
    for cut in [*cuts, len(body)]:
        reader.add_last([body[start : start + cut]])
        start += cut
    messages = [message for message, _ in read_all(reader)]
    assert reader.is_empty
    ends = [len(b"".join(map(framed, parts[:count]))) for count in range(len(parts))]
    started = [end for end in ends if end + 5 <= start - sum([*cuts, len(body)])]
    assert messages == parts[: len(started)]


@given(
    sizes=st.lists(st.integers(0, 70_000) | st.sampled_from([65_535, 65_536]), max_size=4),
    cuts=st.lists(st.integers(1, 90_000), max_size=9),
    reads_first=st.lists(st.booleans(), max_size=9),
)
@settings(max_examples=examples(60))
def test_long_messages_however_they_are_split(
    sizes: list[int], cuts: list[int], reads_first: list[bool]
) -> None:
    """A long message has its own buffer from the first call of ``next_message`` on."""
    parts = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    reader, start, messages = MessageReader(100_000, ""), 0, []
    body = b"".join(map(framed, parts))
    for cut, reads in zip([*cuts, len(body)], [*reads_first, *[True] * 10], strict=False):
        piece = body[start : start + cut]
        before = reader.held_bytes
        reader.add([piece])
        assert reader.held_bytes == before + len(piece)
        start += cut
        if reads:
            messages += read_all(reader)
    messages += read_all(reader)
    assert messages == [(part, len(part) + 5) for part in parts]
    assert (reader.is_empty, reader.held_bytes, reader.missing_bytes) == (True, 0, 0)


@pytest.mark.parametrize("requested", [False, True])
def test_a_long_message_is_the_last_after_a_stop(*, requested: bool) -> None:
    reader, body = MessageReader(MAX_BYTES, ""), framed(b"x" * 90_000)
    reader.add([body[:70_000]])
    if requested:
        assert reader.next_message() is None
    reader.stop_after_current()
    reader.add_last([body[70_000:80_000], body[80_000:] + framed(b"next")])
    reader.add_last([framed(b"another")])
    assert read_all(reader) == [(b"x" * 90_000, len(body))]
    assert (reader.is_empty, reader.missing_bytes) == (True, 0)


async def test_a_long_compressed_message_may_arrive_in_pieces() -> None:
    data = random.Random(0).randbytes(90_000)
    reader, body = MessageReader(100_000, "gzip"), framed(gzip.compress(data), 1)
    reader.add([body[:70_000]])
    assert reader.next_message() is None
    assert reader.missing_bytes == len(body) - 70_000
    reader.add([body[70_000:] + framed(b"next")])
    received = reader.next_message()
    assert received is not None
    deferred, length = received
    assert isinstance(deferred, DeferredInflation)
    assert (length, len(deferred)) == (len(body), len(body) - 5)
    assert await deferred.inflate(UNLIMITED) == data
    assert reader.next_message() == (b"next", 9)


def _deferred(packed: bytes, limit: int = 64 * MIB) -> DeferredInflation:
    reader = SingleMessageReader(limit, "gzip")
    reader.add([framed(packed, 1)])
    assert isinstance(reader.message, DeferredInflation)
    return reader.message


async def test_a_bomb_is_counted_while_it_is_inflated_and_does_not_block_others() -> None:
    packed = gzip.compress(bytes(32 * MIB), 1)
    deferred, budget = _deferred(packed), Budget(MIB)
    assert deferred.prefix == bytes(len(deferred.prefix))
    assert len(deferred.prefix) <= 2 * PIECE_BYTES
    with pytest.raises(GatewayError, match="full"):
        await deferred.inflate(budget)
    assert budget.peak > MIB - PIECE_BYTES
    assert budget.held == 0
    others = [_deferred(packed) for _ in range(3)]
    tasks = [asyncio.create_task(each.inflate(UNLIMITED)) for each in others]
    iterations = 0
    while not all(each.done() for each in tasks):
        iterations += 1
        await asyncio.sleep(0)
    # In each iteration of the loop, one piece of one message is inflated.
    assert iterations >= 3 * 32 * MIB // PIECE_BYTES
    assert [bytes(each.result()) == bytes(32 * MIB) for each in tasks] == [True] * 3


@pytest.mark.parametrize(
    ("packed", "error"),
    [
        (gzip.compress(bytes(MIB))[:-4], InvalidMessageError),
        (gzip.compress(bytes(MIB)) + b"x", InvalidMessageError),
        (gzip.compress(bytes(MIB))[:-8] + bytes(8), InvalidMessageError),
        (gzip.compress(bytes(MIB)) * 2, InvalidMessageError),  # gRPC allows one gzip member
        (gzip.compress(bytes(2 * MIB)), MessageTooLongError),
    ],
    ids=range(5),  # gzip data contains the time, and test processes must collect equal names
)
async def test_errors_after_the_prefix_are_found(packed: bytes, error: type[GatewayError]) -> None:
    deferred = _deferred(packed, MIB)
    with pytest.raises(error):
        await deferred.inflate(UNLIMITED)
    assert type(deferred.error) is error


@pytest.mark.parametrize(("name", "packed"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_inflated(name: str, packed: object) -> None:
    assert callable(packed)
    body = framed(packed(b"a" * 5000), 1)
    single = SingleMessageReader(MAX_BYTES, name)
    single.add([body])
    assert single.message == b"a" * 5000
    reader = MessageReader(MAX_BYTES, name)
    reader.add([body, framed(b"plain")])
    assert read_all(reader) == [(b"a" * 5000, len(body)), (b"plain", 10)]


MALFORMED = {
    "flag 2": (b"\2\0\0\0\1a", "", InvalidMessageError),
    "two messages": (framed(b"a") + framed(b"b"), "", InvalidMessageError),
    "compressed without encoding": (framed(b"a", 1), "", InvalidMessageError),
    "compressed as identity": (framed(b"a", 1), "identity", InvalidMessageError),
    "compressed as snappy": (framed(b"a", 1), "snappy", InvalidMessageError),
    "not gzip": (framed(b"abc", 1), "gzip", InvalidMessageError),
    "truncated gzip": (framed(gzip.compress(b"abc")[:-1], 1), "gzip", InvalidMessageError),
    "gzip with extra bytes": (framed(gzip.compress(b"abc") + b"x", 1), "gzip", InvalidMessageError),
    "too long": (PREFIX.pack(0, MAX_BYTES + 1), "", MessageTooLongError),
    "a bomb": (framed(zlib.compress(bytes(MAX_BYTES + 1)), 1), "deflate", MessageTooLongError),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_messages_are_rejected(case: str) -> None:
    body, encoding, error = MALFORMED[case]
    single = SingleMessageReader(MAX_BYTES, encoding)
    with pytest.raises(
        error, match="larger than max" if error is MessageTooLongError else "message"
    ):
        single.add([body])
    reader = MessageReader(MAX_BYTES, encoding)
    reader.add([body])
    if case != "two messages":
        with pytest.raises(error):
            reader.next_message()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9),
        ("99999999S", 99_999_999), ("", None), ("5", None), ("-5S", None), ("1e3S", None),
        ("999999999S", None), ("5s", None), ("٣S", None), ("5S\n", None),
    ],
)  # fmt: skip
def test_timeouts_are_read(text: str, seconds: float | None) -> None:
    assert headers.read_timeout(text) == (None if seconds is None else pytest.approx(seconds))


@given(st.floats(0, 1e9))
def test_a_written_timeout_is_read_back_rounded_up(seconds: float) -> None:
    read = headers.read_timeout(headers.write_timeout(seconds))
    assert read is not None
    if seconds <= 99_999_999:
        assert seconds * (1 - 1e-9) <= read <= seconds * 1.001 + 1e-6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0u"), (0, "0u"), (0.0300001, "30001u"), (0.999_999_5, "1000000u"), (1, "1000m"),
        (29.9993, "30000m"), (30, "30000m"), (99_998.5, "99998500m"), (99_999, "99999S"),
        (1e9, "99999999S"),
    ],
)  # fmt: skip
def test_timeouts_are_written(seconds: float, text: str) -> None:
    assert headers.write_timeout(seconds) == text
    encoded = header_blocks.encode_field("grpc-timeout", text)
    assert headers.request_suffix(seconds, {}) == encoded


def test_request_headers_are_interpreted() -> None:
    parsed = request_headers(
        ("grpc-timeout", "1S"), ("grpc-encoding", "gzip"), ("x-a", "1"), ("x-a", "2"),
        ("r-bin", "AP8="),
    )  # fmt: skip
    assert (parsed.method, parsed.timeout, parsed.encoding) == ("/a/b", 1.0, "gzip")
    assert dict(parsed.headers) == {"x-a": "1, 2", "r-bin": "AP8"}
    assert parsed.refusal is None


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        (request_headers(**{"content-type": "text/html"}), 415, 2),
        (request_headers(**{"content-type": ""}), 415, 2),
        (request_headers(**{"content-type": "application/grpcweb"}), 415, 2),
        (request_headers(**{":method": "GET"}), 405, 13),
        (request_headers(te=""), 400, 13),
        (request_headers(("a", "x" * 500), limits=Limits(headers=600)), 200, 8),
        (request_headers(("a", "b"), ("c", "d"), limits=Limits(header_count=3)), 200, 8),
    ],
)
def test_invalid_requests_are_refused(fields: RequestHeaders, status: int, code: int) -> None:
    assert fields.refusal is not None
    assert (fields.status, fields.refusal[0]) == (status, code)


@pytest.mark.parametrize("excess", [0, 1])
def test_metadata_is_accepted_up_to_its_limits(excess: int) -> None:
    """The size counts 32 more bytes for each field (RFC 9113, 6.5.2)."""
    pseudo = {":method": "POST", ":scheme": "http", ":path": "/a/b"}
    plain = {"content-type": "application/grpc", "te": "trailers", "c": "d" * 9}
    size = sum(len(name) + len(value) + 32 for name, value in (pseudo | plain).items())
    for limit, maximum in {"headers": size, "header_count": len(plain)}.items():
        parsed = request_headers(("c", "d" * 9), limits=Limits(**{limit: maximum - excess}))  # type: ignore[arg-type]
        assert parsed.limit == (limit if excess else "")
        assert (parsed.refusal is not None) is bool(excess)


@pytest.mark.parametrize("suffix", ["", "+proto", ";x"])
def test_content_types_of_grpc_are_accepted(suffix: str) -> None:
    assert request_headers(**{"content-type": f"application/grpc{suffix}"}).refusal is None


@given(details=st.text(max_size=60), code=st.integers(0, 20))
@example(details="a\ud800b", code=3)
def test_written_trailers_are_read_back(details: str, code: int) -> None:
    """Characters that cannot be encoded are replaced."""
    metadata = {"x-b": "1", "c-bin": "AP8"}
    trailers = headers.encode_trailers(code, details, metadata)
    parsed = ResponseHeaders(HeaderBlockDecoder(9999).decode(trailers))
    assert parsed.code == (code if code <= 16 else 2)
    assert parsed.details == details.encode("utf-8", "replace").decode()
    assert dict(parsed.metadata) == metadata


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([(":status", "200")], None),
        ([(":status", "404")], 12),
        ([(":status", "503")], 14),
        ([(":status", "418")], 2),
        ([(":status", "503"), ("grpc-status", "5")], 5),
        ([("grpc-status", "fine")], None),
        ([("grpc-status", "-1")], None),
        ([("grpc-status", "9" * 5000)], None),
        ([("grpc-status", "99")], 2),
        ([("x", "y")], None),
    ],
)
def test_status_codes_are_read(pairs: list[tuple[str, str]], code: int | None) -> None:
    assert ResponseHeaders(block(*pairs)).code == code


@given(
    st.dictionaries(
        st.sampled_from(["a", "x-request-id", "b-bin", "grpc-x", "te", "Upper", "n" * 65])
        | st.text("ab-_.:\u00e9", max_size=5),
        st.text(max_size=5) | st.sampled_from([" x ", "AP8, AQ=", "!", "a\nb", "\x7f"]),
    )
)
def test_metadata_is_written_as_fields(entries: dict[str, str]) -> None:
    pairs = metadata.to_wire(entries)
    assert headers.request_suffix(None, entries) == header_blocks.encode_block(*pairs)
