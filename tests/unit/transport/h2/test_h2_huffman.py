"""The Huffman decoder, compared with that of ``hpack``."""

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
def test_encoded_text_is_decoded(text: bytes) -> None:
    assert huffman.decode(ENCODER.encode(text)) == text


@given(st.binary(max_size=100))
@example(b"\xff\xff\xff\xff")
def test_any_bytes_are_decoded_as_by_hpack(text: bytes) -> None:
    try:
        expected = decode_huffman(text)
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            huffman.decode(text)
    else:
        assert huffman.decode(text) == expected


def test_the_number_of_cached_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huffman, "_steps", BoundedCache(100))
    for number in range(1000):
        text = bytes((number % 256, number // 4))
        assert huffman.decode(ENCODER.encode(text)) == text
        assert len(huffman._steps) <= 100
