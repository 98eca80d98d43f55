import numpy as np
import pytest

from infergate.core.datatypes import DATATYPES_BY_NAME, FLOATS, INTEGERS, NUMPY_DTYPES, Datatype

SIZES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
    "BYTES": 0,
}


def test_every_datatype_has_its_name_and_size() -> None:
    assert {name: datatype.itemsize for name, datatype in DATATYPES_BY_NAME.items()} == SIZES
    assert set(DATATYPES_BY_NAME.values()) == set(Datatype)


def test_kinds_partition_the_datatypes() -> None:
    others = {Datatype.BOOL, Datatype.BYTES}
    assert INTEGERS | FLOATS | others == set(Datatype)
    assert len(INTEGERS) + len(FLOATS) + len(others) == len(Datatype)


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_numpy_agrees_on_size_and_byte_order(datatype: Datatype) -> None:
    dtype = np.dtype(NUMPY_DTYPES[datatype])
    assert dtype.itemsize == datatype.itemsize
    array = np.ones(1, dtype)
    if datatype in INTEGERS:
        assert array.tobytes() == (1).to_bytes(datatype.itemsize, "little")
        assert (dtype.kind == "u") == datatype.value.startswith("U")


def test_bytes_have_no_dtype() -> None:
    assert Datatype.BYTES not in NUMPY_DTYPES
