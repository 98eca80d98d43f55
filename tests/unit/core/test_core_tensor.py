from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from infergate.core.datatypes import FLOATS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import (
    NO_PARAMETERS,
    OpaqueParameters,
    Tensor,
    pack_bytes,
    tensor_from_array,
    unpack_bytes,
)
from infergate.testing.strategies import tensors

SHAPES = st.just(()) | array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


@given(tensors())
def test_tensors_round_trip_through_numpy(tensor: Tensor) -> None:
    array = tensor.numpy()
    assert array.shape == tensor.shape
    restored = tensor_from_array(tensor.name, tensor.datatype, array, tensor.parameters)
    assert restored == replace(tensor, data=restored.data)
    if tensor.datatype in FLOATS:  # a signalling NaN may come back quiet
        equal = restored.numpy() == array
        assert np.all(equal | (np.isnan(array) & np.isnan(restored.numpy())))
    else:
        assert bytes(restored.data) == tensor.data


@given(arrays(np.int64, SHAPES))
def test_any_memory_order_becomes_row_major(array: np.ndarray[Any, Any]) -> None:
    tensor = tensor_from_array(
        "t", Datatype.INT64, np.asfortranarray(array)[..., ::-1] if array.ndim else array
    )
    expected = array[..., ::-1] if array.ndim else array
    assert bytes(tensor.data) == expected.astype("<i8").tobytes("C")


@pytest.mark.parametrize("datatype", [Datatype.INT32, Datatype.FP64, Datatype.UINT16])
def test_big_endian_arrays_become_little_endian(datatype: Datatype) -> None:
    big = np.array([1, 258], np.dtype(NUMPY_DTYPES[datatype]).newbyteorder(">"))
    assert tensor_from_array("t", datatype, big).numpy().tolist() == [1, 258]


def test_numeric_views_share_memory_and_may_not_be_written() -> None:
    data = bytearray(8)
    view = Tensor("t", Datatype.INT32, (2,), bytes(data)).numpy()
    assert not view.flags.writeable
    shared = Tensor("t", Datatype.INT32, (2,), data).numpy()
    data[0] = 7
    assert shared.tolist() == [7, 0]


def test_bytes_keep_zero_bytes_at_their_ends() -> None:
    elements = [b"", b"\x00", b"a\x00\x00", b"\xff\x00"]
    tensor = Tensor("t", Datatype.BYTES, (2, 2), pack_bytes(elements))
    assert tensor.numpy().ravel().tolist() == elements
    assert tensor_from_array("t", Datatype.BYTES, tensor.numpy()).data == tensor.data


def test_parameters_are_kept_and_default_to_empty() -> None:
    array = np.zeros(1, np.int8)
    assert tensor_from_array("t", Datatype.INT8, array).parameters is NO_PARAMETERS
    assert tensor_from_array("t", Datatype.INT8, array, {"a": 1}).parameters == {"a": 1}
    assert Tensor("t", Datatype.INT8, (1,), b"\x00").parameters == {}


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_unpacking_reverses_packing(elements: list[bytes]) -> None:
    packed = pack_bytes(elements)
    assert packed == b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    for data in (packed, bytearray(packed), memoryview(packed)):
        assert list(unpack_bytes(data)) == elements


def test_opaque_parameters_convert_memoryviews_to_bytes() -> None:
    """Long ``bytes`` objects from a helper process arrive as memoryviews."""
    parameters = OpaqueParameters({"a": 1}, ("p",), memoryview(b"classify\0{}"))
    assert parameters.text.partition(b"\0") == (b"classify", b"\0", b"{}")
    kind, arguments = parameters.__reduce__()
    assert kind(*arguments).text == b"classify\0{}"
