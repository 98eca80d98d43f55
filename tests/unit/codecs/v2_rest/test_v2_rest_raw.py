"""The model's metadata gives the name, datatype and shape of a raw binary request's input."""

import pytest

from gateway_errors import raises_kind
from infergate.codecs.v2_rest.raw_request import read_only_input
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor


def resolve(data: bytes, *inputs: TensorMetadata) -> Tensor:
    return read_only_input(data, ModelMetadata("m", inputs=inputs))


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "resolved"),
    [
        ("FP32", (2,), 8, (2,)),
        ("FP32", (), 4, ()),
        ("FP32", (-1,), 8, (2,)),
        ("FP32", (-1,), 0, (0,)),
        ("FP32", (-1, 3), 24, (2, 3)),
        ("FP32", (-1, -1, 2), 16, (1, 2, 2)),
        ("INT8", (2, -1), 6, (2, 3)),
        ("INT8", (0, -1), 0, (0, 0)),
        ("BF16", (-1, 1), 2, (1, 1)),
    ],
)
def test_the_shape_of_numbers_is_resolved(
    datatype: str, shape: tuple[int, ...], size: int, resolved: tuple[int, ...]
) -> None:
    tensor = resolve(b"a" * size, TensorMetadata("X", datatype, shape))
    assert tensor == Tensor("X", Datatype[datatype], resolved, b"a" * size)


@pytest.mark.parametrize("shape", [(1,), (-1, 1), (-1,), ()])
def test_a_single_string(shape: tuple[int, ...]) -> None:
    tensor = resolve(b"hello", TensorMetadata("X", "BYTES", shape))
    assert tensor.data == b"\x05\0\0\0hello"
    assert tensor.shape == (1,) * len(shape)


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "expected"),
    [
        ("FP32", (2,), 4, "4 bytes"),
        ("FP32", (-1, 3), 13, "13 bytes"),
        ("FP32", (-1, -1, -1), 4, "one variable dimension"),
        ("FP32", (2, -1, -1), 4, "one variable dimension"),
        ("FP32", (0, -1), 4, "4 bytes"),
        ("BYTES", (2,), 4, "BYTES"),
        ("BYTES", (-1, -1), 4, "BYTES"),
    ],
)
def test_unresolvable_shapes(
    datatype: str, shape: tuple[int, ...], size: int, expected: str
) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=f"'X'.*{expected}"):
        resolve(b"a" * size, TensorMetadata("X", datatype, shape))


def test_models_with_other_inputs() -> None:
    input_metadata = TensorMetadata("X", "INT8", (1,))
    for inputs in ((), (input_metadata, input_metadata)):
        with pytest.raises(GatewayError, match=f"has {len(inputs)}"):
            resolve(b"a", *inputs)
    with raises_kind(Kind.UNSUPPORTED, match="TYPE_X"):
        resolve(b"a", TensorMetadata("X", "TYPE_X", (1,)))
