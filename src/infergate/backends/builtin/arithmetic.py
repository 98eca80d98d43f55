"""The built-in models ``simple`` and ``simple_string``, as in the examples of Triton and the legacy
server."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.model import Signature, UnaryModel, invalid_request
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array, unpack_bytes

_SHAPE: Final = (-1, 16)
_MAX_BATCH: Final = 8
_INT32: Final = np.iinfo(np.int32)
_DECIMAL: Final = re.compile(rb"([+-]?)0*([0-9]{1,10})")


def _signature(model: str, datatype: Datatype) -> Signature:
    def pair(prefix: str) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(f"{prefix}{i}", datatype.value, _SHAPE) for i in (0, 1))

    return Signature(model, pair("INPUT"), pair("OUTPUT"), _MAX_BATCH)


class Simple(UnaryModel):
    """INPUT0, INPUT1 INT32 [-1,16] → OUTPUT0, their sum, and OUTPUT1, their difference, both modulo
    2^32."""

    signature = _signature("simple", Datatype.INT32)

    def infer(self, request: InferRequest) -> InferResponse:
        inputs = self.signature.checked_inputs(request)
        left, right = inputs["INPUT0"].numpy(), inputs["INPUT1"].numpy()
        return self.signature.build_response(
            request,
            (
                tensor_from_array("OUTPUT0", Datatype.INT32, left + right),
                tensor_from_array("OUTPUT1", Datatype.INT32, left - right),
            ),
        )


class SimpleString(UnaryModel):
    """The model ``simple`` for BYTES tensors. Every element is an INT32 in decimal."""

    signature = _signature("simple_string", Datatype.BYTES)

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the sum and the difference. Raises BAD_REQUEST for an element that is not an INT32
        in decimal."""
        inputs = self.signature.checked_inputs(request)
        left, right = _parse_integers(inputs["INPUT0"]), _parse_integers(inputs["INPUT1"])
        return self.signature.build_response(
            request,
            (_format_decimals("OUTPUT0", left + right), _format_decimals("OUTPUT1", left - right)),
        )


def _parse_integers(tensor: Tensor) -> npt.NDArray[Any]:
    numbers = [
        _parse_integer(tensor.name, position, element)
        for position, element in enumerate(unpack_bytes(tensor.data))
    ]
    return np.array(numbers, dtype=np.int32).reshape(tensor.shape)


def _parse_integer(name: str, position: int, element: bytes) -> int:
    # int() also accepts "1_000", spaces and the digits of other scripts.
    digits = _DECIMAL.fullmatch(element)
    number = int(b"".join(digits.groups())) if digits else None
    if number is None or not _INT32.min <= number <= _INT32.max:
        raise invalid_request(f"input '{name}': element {position} is not a decimal INT32 number")
    return number


def _format_decimals(name: str, numbers: npt.NDArray[Any]) -> Tensor:
    elements = (str(number).encode() for number in numbers.ravel().tolist())
    return Tensor(name, Datatype.BYTES, numbers.shape, pack_bytes(elements))
