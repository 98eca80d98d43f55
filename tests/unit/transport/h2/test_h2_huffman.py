"""Decoding four bits at a time equals ``hpack``'s decoder."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given
from hypothesis import strategies as st

from infergate.core.bounded_cache import BoundedCache
from infergate.transport.http2 import huffman

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.binary(max_size=100))
def test_encoded_messages(text: bytes) -> None:
    assert huffman.decode(ENCODER.encode(text)) == text


@given(st.binary(max_size=100))
@example(b"\xff\xff\xff\xff")
def test_any_bytes(text: bytes) -> None:
    try:
        wanted = decode_huffman(text)
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            huffman.decode(text)
    else:
        assert huffman.decode(text) == wanted


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huffman, "_steps", BoundedCache(100))
    for number in range(1000):
        text = bytes((number % 256, number // 4))
        assert huffman.decode(ENCODER.encode(text)) == text
        assert len(huffman._steps) <= 100
