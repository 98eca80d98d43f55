"""Checks of tensor shapes and data. Each error names the tensor."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.tensor import (
    MAX_BYTES_ELEMENTS,
    add_bytes_elements,
    check_data,
    check_shape,
    count_bytes_elements,
    pack_bytes,
)


def error_text(check: Any, *arguments: Any) -> str:
    with raises_kind(Kind.BAD_REQUEST) as caught:
        check(*arguments)
    return caught.value.public


@pytest.mark.parametrize("shape", [[], [0], (1, 2, 3), [2**63 - 1], [1] * DEFAULT_LIMITS.rank])
def test_valid_shapes_are_accepted(shape: Any) -> None:
    assert check_shape("t", shape, DEFAULT_LIMITS) == tuple(shape)


@pytest.mark.parametrize(
    ("dimension", "text"),
    [
        (-1, "-1"),
        (2**63, str(2**63)),
        (1.0, "1.0"),
        ("1", "'1'"),
        (True, "True"),
        (None, "None"),
        ([1], "[1]"),
    ],
)
def test_invalid_dimensions_are_rejected(dimension: Any, text: str) -> None:
    error = error_text(check_shape, "image", [4, dimension], DEFAULT_LIMITS)
    assert error.startswith(f"tensor 'image': shape has {text} where")


def test_rank_is_limited() -> None:
    error = error_text(check_shape, "t", [1] * 3, Limits(rank=2))
    assert error == "tensor 't': shape has 3 dimensions; the limit is 2"


@given(st.sampled_from(Datatype), st.lists(st.integers(0, 3), max_size=4).map(tuple))
def test_data_of_the_right_size_is_accepted(datatype: Datatype, shape: tuple[int, ...]) -> None:
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        check_data("t", datatype, shape, pack_bytes([b"ab"] * count))
    else:
        check_data("t", datatype, shape, bytes(count * datatype.itemsize))


@given(
    st.sampled_from([d for d in Datatype if d is not Datatype.BYTES]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 300),
)
def test_data_of_any_other_size_is_refused(
    datatype: Datatype, shape: tuple[int, ...], size: int
) -> None:
    needed = math.prod(shape) * datatype.itemsize
    if size == needed:
        return
    error = error_text(check_data, "t", datatype, shape, bytes(size))
    assert error == (
        f"tensor 't': shape {list(shape)} of {datatype.value} needs {needed} bytes, "
        f"but the data holds {size}"
    )


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**40,), (2**62, 2)])
def test_the_size_of_a_shape_does_not_overflow(shape: tuple[int, ...]) -> None:
    assert "tensor 't'" in error_text(check_data, "t", Datatype.FP32, shape, b"")


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**40,), (MAX_BYTES_ELEMENTS + 1,)])
def test_too_many_bytes_elements_are_rejected(shape: tuple[int, ...]) -> None:
    with raises_kind(Kind.TOO_LARGE, match=r"tensor 't'.*the limit is"):
        check_data("t", Datatype.BYTES, shape, b"")


def test_bytes_elements_add_up_over_a_message() -> None:
    half = add_bytes_elements("a", (MAX_BYTES_ELEMENTS // 2,), 0)
    assert add_bytes_elements("b", (MAX_BYTES_ELEMENTS // 2,), half) == MAX_BYTES_ELEMENTS
    with raises_kind(Kind.TOO_LARGE, match="tensor 'c'"):
        add_bytes_elements("c", (1,), MAX_BYTES_ELEMENTS)


def test_counting_stops_one_element_past_the_expected_count() -> None:
    data = pack_bytes([b"x"] * 3) + b"\xff" * 1000  # reading these bytes would raise
    assert count_bytes_elements("t", data, 2) == 3


@pytest.mark.parametrize(("shape", "count"), [((2,), 3), ((4,), 3), ((), 3), ((0,), 3), ((), 0)])
def test_another_count_of_bytes_elements_is_rejected(shape: tuple[int, ...], count: int) -> None:
    error = error_text(check_data, "t", Datatype.BYTES, shape, pack_bytes([b"x"] * count))
    assert error == (
        f"tensor 't': shape {list(shape)} needs {math.prod(shape)} BYTES elements, but the "
        f"data holds {'more' if count > math.prod(shape) else count}"
    )


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_elements_are_counted(elements: list[bytes]) -> None:
    data = pack_bytes(elements)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert count_bytes_elements("t", buffer, len(elements)) == len(elements)


@given(st.lists(st.binary(max_size=9), max_size=5), st.integers(1, 3))
def test_trailing_bytes_are_rejected(elements: list[bytes], extra: int) -> None:
    error = error_text(count_bytes_elements, "t", pack_bytes(elements) + b"\x00" * extra, 100)
    assert error == (
        f"tensor 't': {extra} bytes are left where element {len(elements)} should begin with its "
        "4-byte length"
    )


@pytest.mark.parametrize(
    ("length", "past"), [(1, 1), (6, 6), (2**31, 2**31), (2**32 - 1, 2**32 - 1)]
)
def test_a_length_past_the_end_is_refused(length: int, past: int) -> None:
    error = error_text(
        count_bytes_elements, "t", pack_bytes([b"ok"]) + length.to_bytes(4, "little"), 100
    )
    assert error == (
        f"tensor 't': the length of element 1 ({length}) runs {past} bytes past the end of the data"
    )


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_counted_or_rejected(data: bytes) -> None:
    count, position = 0, 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4].ljust(4, b"\xff"), "little")
        count += 1
    if position == len(data):
        assert count_bytes_elements("t", data, len(data)) == count
    else:
        error_text(count_bytes_elements, "t", data, len(data))
