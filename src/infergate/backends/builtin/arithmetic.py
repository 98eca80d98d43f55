"""``simple`` and ``simple_string``: the models of Triton's and the legacy server's examples."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.model import Signature, UnaryModel, invalid
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_of, unpack_bytes

_SHAPE: Final = (-1, 16)
_MAX_BATCH: Final = 8
_INT32: Final = np.iinfo(np.int32)
_DECIMAL: Final = re.compile(rb"([+-]?)0*([0-9]{1,10})")


def _signature(model: str, datatype: Datatype) -> Signature:
    def pair(prefix: str) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(f"{prefix}{i}", datatype.value, _SHAPE) for i in (0, 1))

    return Signature(model, pair("INPUT"), pair("OUTPUT"), _MAX_BATCH)


class Simple(UnaryModel):
    """INPUT0, INPUT1 INT32 [-1,16] → OUTPUT0 their sum, OUTPUT1 their difference, wrapping."""

    signature: Final = _signature("simple", Datatype.INT32)

    @property
    def metadata(self) -> ModelMetadata:
        """The model's metadata."""
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the sum and the difference."""
        inputs = self.signature.accept(request)
        left, right = inputs["INPUT0"].numpy(), inputs["INPUT1"].numpy()
        return self.signature.answer(
            request,
            (
                tensor_of("OUTPUT0", Datatype.INT32, left + right),
                tensor_of("OUTPUT1", Datatype.INT32, left - right),
            ),
        )


class SimpleString(UnaryModel):
    """The same with BYTES: every element is an INT32 in decimal."""

    signature: Final = _signature("simple_string", Datatype.BYTES)

    @property
    def metadata(self) -> ModelMetadata:
        """The model's metadata."""
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the sum and the difference. Raises BAD_REQUEST naming the element that is not an
        INT32."""
        inputs = self.signature.accept(request)
        left, right = _integers(inputs["INPUT0"]), _integers(inputs["INPUT1"])
        return self.signature.answer(
            request, (_decimals("OUTPUT0", left + right), _decimals("OUTPUT1", left - right))
        )


def _integers(tensor: Tensor) -> npt.NDArray[Any]:
    numbers = [
        _integer(tensor.name, position, element)
        for position, element in enumerate(unpack_bytes(tensor.data))
    ]
    return np.array(numbers, dtype=np.int32).reshape(tensor.shape)


def _integer(name: str, position: int, element: bytes) -> int:
    # int() alone would accept "1_000", spaces and the digits of other scripts.
    digits = _DECIMAL.fullmatch(element)
    number = int(b"".join(digits.groups())) if digits else None
    if number is None or not _INT32.min <= number <= _INT32.max:
        raise invalid(f"input '{name}': element {position} is not a decimal INT32 number")
    return number


def _decimals(name: str, numbers: npt.NDArray[Any]) -> Tensor:
    elements = (str(number).encode() for number in numbers.ravel().tolist())
    return Tensor(name, Datatype.BYTES, numbers.shape, pack_bytes(elements))
