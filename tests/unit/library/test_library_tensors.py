"""Conversion of arrays to tensors and back."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from infergate import Datatype, tensor
from infergate.core.tensor import check_data

DTYPES = [
    st_numpy.boolean_dtypes(),
    st_numpy.integer_dtypes(endianness="?"),
    st_numpy.unsigned_integer_dtypes(endianness="?"),
    st_numpy.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
]
ARRAYS = st_numpy.arrays(
    st.one_of(*DTYPES), st_numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
)


@given(ARRAYS)
@settings(max_examples=30)
def test_an_array_round_trips_with_the_datatype_of_its_dtype(array: Any) -> None:
    actual = tensor("x", array)
    assert actual.datatype.itemsize == array.dtype.itemsize
    check_data(actual.name, actual.datatype, actual.shape, actual.data)
    np.testing.assert_array_equal(actual.numpy(), array)


@pytest.mark.parametrize(
    ("values", "datatype", "expected"),
    [
        ([1, 2], None, Datatype.INT64),
        ([[1.5]], None, Datatype.FP64),
        ([True], None, Datatype.BOOL),
        ([1, 255], Datatype.UINT8, Datatype.UINT8),
        ([1, 1 << 63], Datatype.UINT64, Datatype.UINT64),
        ([np.array(1)], Datatype.INT32, Datatype.INT32),
        ([], Datatype.INT32, Datatype.INT32),
        (np.array([1, 2]), Datatype.FP32, Datatype.FP32),
        (np.array([1.5], ml_dtypes.bfloat16), None, Datatype.BF16),
        ([1.5], Datatype.BF16, Datatype.BF16),
    ],
)
def test_the_datatype_is_inferred_or_as_requested(
    values: Any, datatype: Datatype | None, expected: Datatype
) -> None:
    actual = tensor("x", values, datatype)
    assert actual.datatype is expected
    assert actual.numpy().tolist() == np.asarray(values).tolist()


@pytest.mark.parametrize("datatype", [None, Datatype.BYTES])
def test_texts_and_bytes_become_bytes_tensors(datatype: Datatype | None) -> None:
    actual = tensor("x", ["ä", b"\0"], datatype)
    assert actual.datatype is Datatype.BYTES
    assert actual.numpy().tolist() == ["ä".encode(), b"\0"]
    assert tensor("x", np.array(["a", "bc"])).numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        ([1j], None),
        (np.array(["2026-01-01"], "M8[D]"), None),
        ([object()], None),
        ([3], Datatype.BYTES),
        (np.array([1.5]), Datatype.INT32),
        ([[1, 1.5]], Datatype.INT32),
        (np.float32(1.5), Datatype.BOOL),
        ([np.array(1.5)], Datatype.INT32),
        ([ml_dtypes.bfloat16(1.5)], Datatype.INT32),
        ([Decimal("1.5")], Datatype.INT32),
        ([Fraction(3, 2)], Datatype.INT32),
        (np.array([-1]), Datatype.UINT8),
    ],
)
def test_elements_that_do_not_fit_are_refused(values: Any, datatype: Datatype | None) -> None:
    with pytest.raises(TypeError):
        tensor("x", values, datatype)
