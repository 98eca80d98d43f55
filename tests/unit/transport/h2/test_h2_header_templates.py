"""Blocks that differ from earlier ones in a few values have the same fields as if they were decoded
from scratch."""

import time
from collections.abc import Sequence

import hpack
import pytest
from h2_kit import header_memory
from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.core.limits import Limits
from infergate.transport.grpc import headers
from infergate.transport.http2 import header_blocks, limits
from infergate.transport.http2.frames import Code, Http2ConnectionError
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.http2.header_blocks import HeaderBlock
from searching import examples

MAX_SIZE = 65_536
INDEXED, PLAIN, NEVER_INDEXED = 0x40, 0, 0x10
NO_TABLE = b"\x20"


def string(text: bytes, *, huffman: bool = False) -> bytes:
    packed = hpack.Encoder().huffman_coder.encode(text) if huffman else text
    length = bytearray(header_blocks.encode_value("x" * len(packed))[: -len(packed) or None])
    length[0] |= 0x80 if huffman else 0
    return bytes(length) + packed


def field(name: str, value: bytes, kind: int = INDEXED, *, huffman: bool = False) -> bytes:
    return bytes((kind,)) + string(name.encode()) + string(value, huffman=huffman)


def request(*fields: bytes, path: str = "/a/B") -> bytes:
    """Return a block as grpcio sends it: its fields ask for indexing in a table of size 0."""
    return b"".join(
        (
            field(":path", path.encode()),
            field(":authority", b"localhost:8001"),
            b"\x83\x86",
            field("content-type", b"application/grpc"),
            field("te", b"trailers"),
            *fields,
            field("user-agent", b"grpc-python/1.85.3"),
        )
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[HeaderBlock]:
    """The blocks that are decoded from scratch."""
    blocks: list[HeaderBlock] = []
    initialize = HeaderBlock.__init__

    def decode(
        block: HeaderBlock,
        raw: Sequence[tuple[bytes, bytes]],
        template: HeaderBlock | None = None,
    ) -> None:
        if template is None and isinstance(raw, list):
            blocks.append(block)
        initialize(block, raw, template)

    monkeypatch.setattr(HeaderBlock, "__init__", decode)
    return blocks


def reference_block(reference: hpack.Decoder, block: bytes) -> HeaderBlock:
    """Decode `block` with hpack. `decoded` does not count it, because the fields are a tuple."""
    return HeaderBlock(tuple(reference.decode(block, raw=True)))


def without_table() -> HeaderBlockDecoder:
    """Return a decoder whose peer has acknowledged that the table has size 0."""
    decoder = HeaderBlockDecoder(MAX_SIZE)
    decoder.disable_table()
    return decoder


def check(decoder: HeaderBlockDecoder, reference: hpack.Decoder, block: bytes) -> HeaderBlock:
    """Decode `block`, and compare it with the reference."""
    actual, expected = decoder.decode(block), reference_block(reference, block)
    for name in HeaderBlock.__slots__:
        if name not in {"template", "changed", "interpretation"}:
            assert getattr(actual, name) == getattr(expected, name), name
    return actual


def reference_decoder(*, size: int = 0) -> hpack.Decoder:
    reference = hpack.Decoder(max_header_list_size=MAX_SIZE)
    reference.max_allowed_table_size = reference.header_table_size = size
    return reference


def test_blocks_that_add_to_a_table_of_size_0_are_decoded_once(decoded: list[HeaderBlock]) -> None:
    decoder = HeaderBlockDecoder(MAX_SIZE)
    decoder.decode(NO_TABLE + request())
    assert decoder.decode(request()) is decoder.decode(request())
    assert len(decoded) == 2


@pytest.mark.parametrize("size", [b"", b"\x3f\xe1\x1f", b"\x3f\x61"], ids=["4096", "same", "128"])
def test_blocks_that_add_to_a_table_are_not_cached(size: bytes, decoded: list[HeaderBlock]) -> None:
    decoder = HeaderBlockDecoder(MAX_SIZE)
    block = field("a", b"b")
    for number in range(1, 5):
        decoder.decode((size if number == 1 else b"") + block)
        assert len(decoded) == number
    assert decoder.decode(b"\xbe").pairs == (("a", "b"),)
    assert not decoder.cache
    assert not len(decoder._templates)


def test_an_entry_too_large_for_a_table_in_use_is_not_cached(
    decoded: list[HeaderBlock],
) -> None:
    """The entry empties the table."""
    decoder = HeaderBlockDecoder(MAX_SIZE)
    small, large = field("a", b"b"), field("large", b"x" * 5000)
    decoder.decode(large)
    decoder.decode(small)
    decoder.decode(large)
    assert len(decoded) == 3
    with pytest.raises(Http2ConnectionError):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize("kind", [INDEXED, PLAIN, NEVER_INDEXED])
@pytest.mark.parametrize("huffman", [False, True])
def test_changing_values_are_decoded_from_scratch_only_at_first(
    kind: int, huffman: bool, decoded: list[HeaderBlock]
) -> None:
    decoder, reference = without_table(), reference_decoder()
    for number in range(100):
        block = request(
            field("grpc-timeout", b"%dm" % (9999 - number), kind, huffman=huffman),
            field("authorization", b"Bearer x", kind),
            field("x-request-id", b"%d" % number * (1 + number), kind, huffman=huffman),
        )
        actual = check(decoder, reference, block)
        assert actual.is_request
    assert len(decoded) == 3


def test_a_value_that_changes_later_joins_the_template(decoded: list[HeaderBlock]) -> None:
    decoder, reference = without_table(), reference_decoder()
    for number in range(30):
        check(
            decoder,
            reference,
            request(field("a", b"%d" % number), field("b", b"%d" % (number // 10))),
        )
    assert len(decoded) == 4  # the first three, and the first change of b


def test_values_that_decide_whether_a_block_is_valid_are_never_skipped() -> None:
    decoder, reference = without_table(), reference_decoder()
    for number in range(5):
        for te in (b"trailers", b"x%d" % number):
            block = b"\x83\x86" + field(":path", b"/a%d" % number) + field("te", te)
            actual = check(decoder, reference, block + field("content-length", b"%d" % number))
            assert actual.is_request is (te == b"trailers")
            assert actual.template is None


@pytest.mark.parametrize(
    "value", [b"a\0b", b"a\nb", b"\r", b"", b"\xff", b" a ", b"x" * 126, b"x" * 127, b"x" * 3000]
)
def test_unusual_values_are_decoded_as_by_hpack(value: bytes) -> None:
    decoder, reference = without_table(), reference_decoder()
    for each in (b"1", b"2", b"3", b"4", value, value, b"5"):
        check(decoder, reference, request(field("a", each)))


@pytest.mark.parametrize("huffman", [False, True])
def test_truncated_and_extended_blocks_end_the_connection(huffman: bool) -> None:
    for last in (True, False):
        decoder = without_table()

        def block(value: bytes, last: bool = last) -> bytes:
            varying = field("a", value, huffman=huffman)
            return request() + varying if last else request(varying)

        for value in (b"1", b"22", b"333", b"44"):
            decoder.decode(block(value))
        assert decoder.decode(block(b"4444")).template is not None
        whole = block(b"55555")
        for cut in (whole[:-1], whole[:-4], whole + b"\x40", whole + b"\xbe"):
            with pytest.raises(Http2ConnectionError) as caught:
                decoder.decode(cut)
            assert caught.value.code == Code.COMPRESSION_ERROR


def test_repeated_names_are_decoded_from_scratch(decoded: list[HeaderBlock]) -> None:
    decoder, reference = without_table(), reference_decoder()
    for number in range(5):
        check(decoder, reference, request(field("a", b"x"), field("a", b"%d" % number)))
    assert len(decoded) == 5


def test_a_large_value_is_refused_as_if_decoded_from_scratch() -> None:
    decoder = HeaderBlockDecoder(1000)
    decoder.disable_table()
    for value in (b"1", b"2", b"3", b"4"):
        decoder.decode(request(field("a", value)))
    with pytest.raises(Http2ConnectionError) as caught:
        decoder.decode(request(field("a", b"x" * 1000)))
    assert caught.value.code == Code.ENHANCE_YOUR_CALM


def test_templates_are_dropped_when_the_table_changes() -> None:
    """With a table of another size, decoding the same block adds an entry."""
    decoder = HeaderBlockDecoder(MAX_SIZE)
    decoder.decode(NO_TABLE)
    for number in range(4):
        decoder.decode(request(field("a", b"%d" % number)))
    decoder.decode(b"\x3f\xe1\x1f")  # size 4096
    decoder.decode(request(field("a", b"5")))
    assert ("user-agent", "grpc-python/1.85.3") in decoder.decode(b"\xbe").pairs
    decoder.disable_table()
    with pytest.raises(Http2ConnectionError):
        decoder.decode(b"\xbe")


_VALUES = st.one_of(st.sampled_from([b"", b"1", b"22", b"\0"]), st.binary(max_size=200))
_NAMES = st.sampled_from(["a", "b", "grpc-timeout", "te", "x-bin", "content-length", "A"])
_KINDS = st.sampled_from([INDEXED, PLAIN, NEVER_INDEXED])
_SHAPES = st.lists(st.tuples(_NAMES, _KINDS, st.booleans(), st.booleans()), max_size=5)
_SIZES = st.sampled_from([b"", b"", b"", b"", NO_TABLE, b"\x3f\x61"])


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), st.lists(_SHAPES, min_size=1, max_size=3), st.booleans())
def test_any_sequence_of_blocks_is_decoded_as_by_hpack(
    data: st.DataObject, shapes: list[list[tuple[str, int, bool, bool]]], has_table: bool
) -> None:
    """Each shape is sent several times, with changing values in some fields."""
    decoder, reference = HeaderBlockDecoder(MAX_SIZE), hpack.Decoder(max_header_list_size=MAX_SIZE)
    if not has_table:
        check(decoder, reference, NO_TABLE)
    for _ in range(data.draw(st.integers(3, 8))):
        block = data.draw(_SIZES) if has_table else b""
        for name, kind, huffman, is_changing in data.draw(st.sampled_from(shapes)):
            value = data.draw(_VALUES) if is_changing else b"same"
            block += field(name, value, kind, huffman=huffman)
        cut = data.draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
        block = block[: len(block) - cut]
        try:
            reference_fields = reference_block(reference, block)
        except (hpack.HPACKError, IndexError, ValueError):
            with pytest.raises(Http2ConnectionError):
                decoder.decode(block)
            return
        actual = decoder.decode(block)
        assert (actual.pairs, actual.pseudo) == (reference_fields.pairs, reference_fields.pseudo)
        assert (actual.size, actual.is_malformed) == (
            reference_fields.size,
            reference_fields.is_malformed,
        )


def test_blocks_that_occur_once_do_not_displace_those_in_use(decoded: list[HeaderBlock]) -> None:
    decoder = without_table()
    hot = request(path="/hot")
    decoder.decode(hot)
    for number in range(3):
        decoder.decode(request(field("a", b"%d" % number)))
    decoded.clear()
    count = 4 * limits.MAX_CACHED_BLOCKS
    for number in range(count):
        decoder.decode(request(field(f"once-{number}", b"x")))
        if number % 50 == 0:
            decoder.decode(hot)
            decoder.decode(request(field("a", b"again %d" % number)))
    assert len(decoded) == count


@pytest.mark.parametrize("size", [10, 1000, 3000])
def test_memory_is_bounded(size: int) -> None:
    """Each shape occurs three times with different values. Long blocks have many fields."""
    decoder = without_table()
    before = header_memory(decoder)
    for number in range(limits.MAX_CACHED_BLOCKS):
        for value in (b"1", b"2", b"3"):
            name = f"n{number}"
            decoder.decode(
                b"".join(field(f"{name}-{each}", value, PLAIN) for each in range(size // 50))
                + field(name, value * (size // 2))
            )
    assert len(decoder._templates) <= limits.MAX_HEADER_TEMPLATES
    assert header_memory(decoder) - before < 6 * limits.MAX_CACHE_BYTES


def test_long_blocks_make_no_templates() -> None:
    decoder = without_table()
    for number in range(4):
        decoder.decode(request(field("a", b"%d" % number + b"x" * limits.MAX_CACHED_BLOCK_BYTES)))
    assert not len(decoder._templates)


def test_huffman_codes_are_decoded_once_although_many_templates_begin_alike() -> None:
    block = request(field("a", b"x" * 50_000, huffman=True), field("other", b"1"))

    def seconds(templates: int) -> float:
        decoder = without_table()
        for template in range(templates):
            for value in (b"1", b"2", b"3"):
                decoder.decode(request(field("a", value), field(f"z-{template}", value)))
        assert len(decoder._templates) == templates
        start = time.process_time()
        decoder.decode(block)
        return time.process_time() - start

    baseline = min(seconds(0) for _ in range(3))
    assert min(seconds(limits.MAX_HEADER_TEMPLATES) for _ in range(3)) < 4 * baseline


# ---- gRPC requests


def grpc_request(**values: bytes) -> bytes:
    return request(
        field("grpc-timeout", values.get("timeout", b"10S")),
        field("grpc-encoding", values.get("encoding", b"gzip")),
        field("x-id", values.get("id", b"1")),
        field("data-bin", values.get("data", b"YQ==, YQ")),
    )


def test_changed_values_of_a_request_are_interpreted() -> None:
    decoder = without_table()
    changes: list[dict[str, bytes]] = [
        {},
        {"timeout": b"1m", "encoding": b"deflate", "id": b"2", "data": b"Yg=="},
        {"timeout": b"2m", "encoding": b"identity", "id": b"3", "data": b"Yg=, Yw=="},
        {"timeout": b"never"},
        {"id": "é".encode(), "data": b""},
        {"id": b"x" * 9000},
        {"id": b"4"},
    ]
    for values in changes:
        block = decoder.decode(grpc_request(**values))
        actual = headers.interpret_request(block, Limits())
        expected = headers.interpret_request(
            reference_block(reference_decoder(), grpc_request(**values)), Limits()
        )
        for name in headers.RequestHeaders.__slots__:
            assert getattr(actual, name) == getattr(expected, name), name
    assert block.template is not None


def test_a_refused_template_does_not_refuse_a_valid_request() -> None:
    decoder = without_table()
    for size in (3000, 3001, 3002, 10):
        block = decoder.decode(grpc_request(id=b"x" * size))
        actual = headers.interpret_request(block, Limits(headers=2000))
        assert (actual.refusal is None) is (size == 10)
    assert block.template is not None


def test_values_beyond_the_limit_are_refused() -> None:
    decoder = without_table()
    for size in (10, 11, 12, 3000, 13):
        block = decoder.decode(grpc_request(id=b"x" * size))
        actual = headers.interpret_request(block, Limits(headers=2000))
        assert actual.limit == ("headers" if size == 3000 else "")
