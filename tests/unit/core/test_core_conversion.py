"""Conversion between datatypes: lossless casts, truth values and rounding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.core.conversion import LOSSLESS_TARGETS, convert
from infergate.core.datatypes import FLOATS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor

PAIRS = [(source, t) for source, ts in LOSSLESS_TARGETS.items() for t in Datatype if t in ts]


def values(tensor: Tensor) -> list[float]:
    return [float(each) for each in tensor.numpy().ravel()]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda pair: pair.value)
@given(bits=st.lists(st.integers(0, 2**16 - 1), max_size=8))
def test_values_survive_conversion_in_both_directions(
    source: Datatype, target: Datatype, bits: list[int]
) -> None:
    array = np.array(bits, "<u2") if source is Datatype.BF16 else np.array(bits, "<u2") % 2 == 1
    tensor = Tensor("x", source, (len(bits),), array.tobytes(), {"p": 1})
    converted = convert(tensor, target)
    assert converted == replace(tensor, datatype=target, data=converted.data)
    assert len(converted.data) == len(bits) * target.itemsize
    np.testing.assert_array_equal(values(converted), values(tensor))
    restored = convert(converted, source)
    assert restored.datatype is source
    np.testing.assert_array_equal(values(restored), values(tensor))
    if not np.isnan(values(tensor)).any():
        assert restored.data == tensor.data


@pytest.mark.parametrize("target", [d for d in Datatype if d in LOSSLESS_TARGETS[Datatype.BOOL]])
def test_a_number_other_than_0_is_true(target: Datatype) -> None:
    array = np.array([0, 1, 2, 100], NUMPY_DTYPES[target])
    if target in FLOATS:
        array = np.concatenate(
            [array, np.array([-0.0, np.nan, np.inf, 1e-7], NUMPY_DTYPES[target])]
        )
    converted = convert(Tensor("x", target, (len(array),), array.tobytes()), Datatype.BOOL)
    expected = [0, 1, 1, 1] + ([0, 1, 1, 1] if target in FLOATS else [])
    assert bytes(converted.data) == bytes(expected)


def test_any_nonzero_byte_is_true() -> None:
    tensor = Tensor("x", Datatype.BOOL, (3,), b"\0\1\xff")
    assert bytes(convert(tensor, Datatype.UINT8).data) == b"\0\1\1"


def test_floats_are_rounded_to_the_nearest_bfloat16() -> None:
    array = np.array([1 + 2**-9, 1 + 3 * 2**-8, 1e300, -1e300], "<f8")
    converted = convert(Tensor("x", Datatype.FP64, (4,), array.tobytes()), Datatype.BF16)
    assert values(converted) == [1.0, 1 + 2 * 2**-7, np.inf, -np.inf]


def test_fp64_is_rounded_once() -> None:
    """Rounding through float32 first would turn the inexact values into ties."""
    tie = 1 + 2**-8
    array = np.array([tie - 1e-12, tie, tie + 1e-12, -tie - 1e-12, np.nan, -0.0, 1e-300], "<f8")
    converted = convert(Tensor("x", Datatype.FP64, (7,), array.tobytes()), Datatype.BF16)
    bits = np.frombuffer(converted.data, "<u2").tolist()
    assert bits == [0x3F80, 0x3F80, 0x3F81, 0xBF81, 0x7FC0, 0x8000, 0]


def test_an_empty_tensor_keeps_its_shape() -> None:
    assert convert(Tensor("x", Datatype.BF16, (0, 3), b""), Datatype.FP32).numpy().shape == (0, 3)
