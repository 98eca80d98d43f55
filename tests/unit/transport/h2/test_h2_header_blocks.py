"""Header blocks are decoded as by ``hpack``, even if they are cached, and at a bounded cost."""

import time
import tracemalloc

import hpack
import pytest
from h2_kit import header_memory
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from infergate.transport.http2 import header_blocks, limits
from infergate.transport.http2.frames import Code, Http2ConnectionError
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.hpack_decoder import HpackDecoder
from searching import examples

MAX_SIZE = 65_536
PHASES = (Phase.explicit, Phase.generate)
_TEXT = st.sampled_from(
    [b"", b"a", b"b", b"a-longer-name", b"v" * 40, b"v" * 130, bytes(range(256))]
)


def _integer(value: int, bits: int, first: int) -> bytes:
    largest = (1 << bits) - 1
    if value < largest:
        return bytes((first | value,))
    written, value = bytearray((first | largest,)), value - largest
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes((*written, value))


def _literal(text: bytes) -> bytes:
    return _integer(len(text), 7, 0) + text


def _huffman(text: bytes) -> bytes:
    packed = hpack.Encoder().huffman_coder.encode(text)
    return _integer(len(packed), 7, 0x80) + packed


_STRINGS = st.one_of(_TEXT.map(_literal), _TEXT.map(_huffman))
_INDICES = st.one_of(st.integers(0, 70), st.sampled_from([126, 127, 128, 5000]))
_FIELDS = st.one_of(
    _INDICES.map(lambda index: _integer(index, 7, 0x80)),
    st.builds(lambda index, value: _integer(index, 6, 0x40) + value, st.integers(1, 66), _STRINGS),
    st.builds(lambda index, value: _integer(index, 4, 0x00) + value, st.integers(1, 66), _STRINGS),
    st.builds(lambda index, value: _integer(index, 4, 0x10) + value, st.integers(1, 66), _STRINGS),
    st.builds(
        lambda kind, name, value: bytes((kind,)) + name + value,
        st.sampled_from([0x40, 0, 0x10]), _STRINGS, _STRINGS,
    ),
)  # fmt: skip
_SIZES = st.sampled_from([0, 30, 31, 33, 100, 4096, 4097, 100_000])
_BLOCKS = st.one_of(
    st.tuples(
        st.lists(_SIZES.map(lambda size: _integer(size, 5, 0x20)), max_size=2).map(b"".join),
        st.lists(_FIELDS, max_size=6).map(b"".join),
    ).map(b"".join),
    st.binary(max_size=20),
    st.builds(lambda block, cut: block[:-cut], _FIELDS, st.integers(1, 3)),
)

_SHORT_BLOCKS = st.sampled_from(
    [b"\x40\1a\1b", b"\x40\1c\1d", b"\0\1c\1d", b"\xbe", b"\xbf", b"\xc0", b"\x82"]
)
_SHORT = st.builds(
    lambda size, parts: size + b"".join(parts),
    st.sampled_from([b"", b"", b"", b"\x20", b"\x3f\x05", b"\x3f\xe1\x1f"]),
    st.lists(_SHORT_BLOCKS, min_size=1, max_size=2),
)


# The repeated block empties the table, so it must not come from the cache.
@example([b"\x20\x82", b"\x3f\xe1\x1f\x40\1a\1b", b"\x20\x82", b"\xbe"], [])
# The repeated block evicts an entry, so it must not come from the cache.
@example([b"\x3f\xe1\x1f\x82", b"\x20\x82", b"\x3f\xe1\x1f\x82", b"\x40\1a\1b", b"\xbe"], [])
@settings(max_examples=examples(600), deadline=None, phases=PHASES)
@given(
    st.one_of(st.lists(_BLOCKS, min_size=1, max_size=6), st.lists(_SHORT, min_size=3, max_size=12)),
    st.lists(st.integers(0, 5), max_size=8),
)
def test_blocks_are_decoded_as_by_hpack(blocks: list[bytes], repeated: list[int]) -> None:
    """Decode the blocks in order on one connection, some of them repeatedly."""
    reference, decoder = hpack.Decoder(max_header_list_size=MAX_SIZE), HeaderBlockDecoder(MAX_SIZE)
    for block in [*blocks, *(blocks[number % len(blocks)] for number in repeated)]:
        try:
            pairs = reference.decode(block, raw=True)
        except (hpack.HPACKError, IndexError, ValueError):
            with pytest.raises(Http2ConnectionError):
                decoder.decode(block)
            return
        decoded, expected = decoder.decode(block), HeaderBlock(pairs)
        assert (decoded.pairs, decoded.pseudo) == (expected.pairs, expected.pseudo)
        assert (decoded.size, decoded.is_malformed) == (expected.size, expected.is_malformed)


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x00\x7f" + b"\xff" * 50_000,
        b"\x3f" + b"\x80" * 50_000,
    ],
    ids=["index", "length", "size"],
)
def test_long_integers_are_rejected(block: bytes) -> None:
    start = time.process_time()
    with pytest.raises(Http2ConnectionError) as caught:
        HpackDecoder(MAX_SIZE).decode(block)
    assert caught.value.code == Code.COMPRESSION_ERROR
    assert time.process_time() - start < 1


BOMBS = {
    "a field for each byte": b"\x8f" * MAX_SIZE,
    "the table's entry for each byte": b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * MAX_SIZE,
    "names without values": b"\0\1a\0" * (MAX_SIZE // 4),
    "entries that evict each other": b"\x40\1a\0" * (MAX_SIZE // 4),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_rejected_before_it_is_decoded(
    bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeaderBlock, "__init__", None)  # so that decoding would fail
    tracemalloc.start()
    with pytest.raises(Http2ConnectionError) as caught:
        HeaderBlockDecoder(MAX_SIZE).decode(BOMBS[bomb])
    assert caught.value.code == Code.ENHANCE_YOUR_CALM
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MAX_SIZE


@pytest.mark.parametrize(
    "block",
    [b"\x8f" * 60, b"\0\1a\1b" * 60, header_blocks.encode_block(("authorization", "x" * 3000))],
)
def test_the_header_cache_is_bounded_by_decoded_size(block: bytes) -> None:
    decoder = HeaderBlockDecoder(MAX_SIZE)
    before = header_memory(decoder)
    for number in range(3 * limits.MAX_CACHED_BLOCKS):
        decoder.decode(block + header_blocks.encode_block(("n", str(number))))
    assert 0 < len(decoder.cache) <= limits.MAX_CACHED_BLOCKS
    assert header_memory(decoder) - before < 5 * limits.MAX_CACHE_BYTES


@pytest.mark.parametrize("block", [b"\x8f" * 1000, b"\x3f\xe1\x1f" * 2000 + b"\x8f"])
def test_a_long_block_is_not_cached(block: bytes) -> None:
    """The block is long when decoded, or only when encoded."""
    decoder = HeaderBlockDecoder(MAX_SIZE)
    decoder.decode(block)
    assert not decoder.cache


def test_the_header_cache_is_bounded_by_encoded_size() -> None:
    decoder = HeaderBlockDecoder(MAX_SIZE)
    for number in range(200):
        decoder.decode(b"\x3f\xe1\x1f" * 1000 + header_blocks.encode_block(("n", str(number))))
    assert sum(map(len, decoder.cache)) <= limits.MAX_CACHE_BYTES
