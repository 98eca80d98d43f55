"""Converts arrays to canonical tensors."""

from __future__ import annotations

from numbers import Integral, Number
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, tensor_from_array

_BFLOAT16: Final = "bfloat16"
"""The name of the bfloat16 dtype of ml_dtypes."""
_DATATYPES: Final = {
    np.dtype(dtype): datatype
    for datatype, dtype in NUMPY_DTYPES.items()
    if datatype is not Datatype.BF16
}
_BYTES_KINDS: Final = "SUO"  # numpy's kinds of bytes, strings and objects
_EXACT: Final = (int, np.integer, np.bool_, str, bytes, Integral)


def tensor(name: str, values: npt.ArrayLike, datatype: Datatype | None = None) -> Tensor:
    """Return a tensor with the elements of ``values``. The inverse is :meth:`Tensor.numpy`.

    Without ``datatype``, the datatype follows from the array's dtype. Python integers become INT64,
    Python floats become FP64, and strings (as UTF-8) and bytes become BYTES. Raises TypeError,
    ValueError or OverflowError if an element cannot be converted to the datatype."""
    if datatype is Datatype.BYTES:
        return tensor_from_array(name, datatype, _bytes_array(values))
    if isinstance(values, np.ndarray):
        array = values
    else:
        dtype = None if datatype is None else _array_dtype(datatype)
        array = np.asarray(values, dtype)
        if datatype is not None and array.dtype.kind != "f" and _has_non_integers(values):
            raise TypeError(f"tensor {name!r}: floats cannot be cast to {datatype.value}")
    if datatype is None:
        if array.dtype.kind in _BYTES_KINDS:
            return tensor_from_array(name, Datatype.BYTES, _bytes_array(values))
        datatype = _datatype_of(array.dtype)
    elif array.dtype.name != _BFLOAT16 and not np.can_cast(
        array.dtype, _array_dtype(datatype), "same_kind"
    ):
        raise TypeError(f"tensor {name!r}: {array.dtype} values cannot be cast to {datatype.value}")
    return tensor_from_array(name, datatype, array)


def _has_non_integers(values: npt.ArrayLike) -> bool:
    """Return whether ``values`` contains numbers whose type is neither an integer type nor bool.
    ``np.asarray`` may truncate these numbers to integers."""
    elements = np.asarray(values, np.object_).flat
    return any(not isinstance(element, _EXACT) and _is_non_integer(element) for element in elements)


def _is_non_integer(element: Any) -> bool:
    # Scalars of ml_dtypes and arrays without dimensions are not instances of Number.
    dtype = np.asarray(element).dtype
    is_float = dtype.kind in "fc" or dtype.name == _BFLOAT16
    return is_float or isinstance(element, Number)


def _array_dtype(datatype: Datatype) -> npt.DTypeLike:
    """Return the dtype of arrays of ``datatype``. numpy has no bfloat16."""
    return np.float32 if datatype is Datatype.BF16 else NUMPY_DTYPES[datatype]


def _datatype_of(dtype: np.dtype[Any]) -> Datatype:
    if dtype.name == _BFLOAT16:
        return Datatype.BF16
    datatype = _DATATYPES.get(dtype.newbyteorder("<"))
    if datatype is None:
        raise TypeError(f"no tensor datatype holds {dtype} values")
    return datatype


def _bytes_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return ``values`` as an array of bytes objects. An array of numpy's own dtype for bytes would
    lose zero bytes at the end of its elements."""
    array = np.asarray(values, np.object_)
    encoded = np.empty(array.size, np.object_)
    encoded[:] = [_encode(item) for item in array.ravel().tolist()]
    return encoded.reshape(array.shape)


def _encode(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray)):
        return bytes(item)
    raise TypeError(
        f"an element of a BYTES tensor must be bytes or a string, not {type(item).__name__}"
    )
