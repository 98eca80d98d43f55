"""Inflating gzip and deflate one piece at a time."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.core.inflation import (
    GZIP,
    PIECE_BYTES,
    RAW,
    ZLIB,
    CorruptDataError,
    InflatedTooLargeError,
    inflate_pieces,
    zlib_window_bits,
)

_DATA = st.builds(
    lambda data, count: data * count,
    st.binary(max_size=300),
    st.sampled_from([0, 1, 2, 300, 1000]),
) | st.sampled_from([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES]).map(bytes)


@given(st.lists(_DATA, min_size=1, max_size=4), st.binary(max_size=3))
def test_all_members_are_inflated_in_short_pieces(members: list[bytes], extra: bytes) -> None:
    packed = b"".join(gzip.compress(each, 1) for each in members)
    whole = b"".join(members)
    pieces = list(inflate_pieces(packed, GZIP, len(whole), len(members) + 1))
    assert b"".join(pieces) == whole
    assert all(len(each) <= PIECE_BYTES for each in pieces)
    if whole:
        with pytest.raises(InflatedTooLargeError):
            list(inflate_pieces(packed, GZIP, len(whole) - 1, len(members) + 1))
    with pytest.raises(CorruptDataError, match="ends too early"):
        list(inflate_pieces(packed[:-1], GZIP, len(whole), len(members) + 1))
    if extra:
        with pytest.raises(CorruptDataError, match=f"{len(extra)} extra bytes|too early|corrupt"):
            list(inflate_pieces(packed + extra, GZIP, len(whole), len(members) + 1))
    if len(members) > 1:
        with pytest.raises(CorruptDataError):
            list(inflate_pieces(packed, GZIP, len(whole), len(members) - 1))


@given(_DATA, st.sampled_from([ZLIB, RAW]))
def test_deflate_data_is_inflated(data: bytes, window: int) -> None:
    packed = zlib.compress(data, wbits=window)
    assert zlib_window_bits("deflate", packed) in {window, ZLIB}
    assert b"".join(inflate_pieces(packed, window, len(data))) == data
    with pytest.raises(CorruptDataError, match="5 extra bytes"):
        list(inflate_pieces(packed + b"after", window, len(data)))


@given(st.binary(max_size=200), st.sampled_from([GZIP, ZLIB, RAW]))
def test_arbitrary_bytes_give_data_or_an_error(data: bytes, window: int) -> None:
    try:
        inflated = b"".join(inflate_pieces(data, window, PIECE_BYTES, 3))
    except (CorruptDataError, InflatedTooLargeError):
        return
    assert len(inflated) <= PIECE_BYTES
