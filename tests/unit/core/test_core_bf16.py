"""Conversion to bfloat16, compared with exact fractions and, where it is installed, ml_dtypes."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor, bf16_from_float32, float32_from_bf16, tensor_from_array

PATTERNS = st.integers(0, 2**32 - 1)


def to_float(bits: int) -> float:
    value: float = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
    return value


def round_exactly(bits: int) -> int:
    """Return the bfloat16 bits of a float32, rounded to nearest even in exact arithmetic."""
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF
    truncated = magnitude >> 16
    if magnitude == 0x7F800000:  # infinity
        return (sign >> 16) | truncated

    def value(pattern: int) -> Fraction:
        # infinity counts as the next power of two
        return Fraction(2) ** 128 if pattern == 0x7F80 else Fraction(to_float(pattern << 16))

    exact, low, high = Fraction(to_float(magnitude)), value(truncated), value(truncated + 1)
    up = exact - low > high - exact or (exact - low == high - exact and truncated % 2 == 1)
    return (sign >> 16) | (truncated + up)


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > 0x7F800000


@given(PATTERNS)
@example(0x7F7FFFFF)  # the largest float32 rounds to infinity
@example(0x7F7F7FFF)
@example(0x3F808000)  # halfway; the lower neighbor is even
@example(0x3F818000)  # halfway; the lower neighbor is odd
@example(0x00000001)  # the smallest subnormal
@example(0x00008000)
@example(0x80000000)  # minus zero
@example(0xFF800000)
def test_conversion_rounds_to_nearest_even(bits: int) -> None:
    if is_nan(bits):
        return
    (actual,) = bf16_from_float32(np.array([bits], "<u4").view("<f4"))
    assert int(actual) == round_exactly(bits)


@given(PATTERNS.filter(is_nan) | st.integers(0x7F800001, 0x7F80FFFF))
@example(0xFFFFFFFF)
def test_nan_remains_nan_with_its_sign(bits: int) -> None:
    actual = int(bf16_from_float32(np.array([bits], "<u4").view("<f4"))[0])
    assert is_nan(actual << 16)
    assert actual >> 15 == bits >> 31


def test_every_bf16_round_trips_through_float32() -> None:
    patterns = np.arange(2**16, dtype="<u2")
    restored = bf16_from_float32(float32_from_bf16(patterns))
    nan = (patterns & 0x7FFF) > 0x7F80
    assert np.array_equal(restored[~nan], patterns[~nan])
    assert np.array_equal(restored[nan], patterns[nan] | 0x40)  # NaNs become quiet


def test_conversion_agrees_with_ml_dtypes() -> None:
    reference = pytest.importorskip("ml_dtypes").bfloat16
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(reference).view(np.uint16)
    assert np.array_equal(bf16_from_float32(values), expected)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 3)])
def test_tensors_of_any_shape_round_trip(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1.5, np.float32)
    tensor = tensor_from_array("t", Datatype.BF16, array)
    assert len(tensor.data) == 2 * array.size
    assert tensor.shape == shape
    restored = Tensor("t", Datatype.BF16, shape, tensor.data).numpy()
    assert restored.dtype == np.float32
    assert np.array_equal(restored, array)
