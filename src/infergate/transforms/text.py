"""Steps for BYTES tensors: Base64, and conversion between text and numbers."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array, unpack_bytes
from infergate.transforms.numeric import TensorStep
from infergate.transforms.step import (
    ANY,
    BYTES,
    Spec,
    TransformError,
    bytes_tensor,
    check_datatype,
    dimensions_match,
)

_WHITESPACE = b" \t\r\n"
_MAX_BYTE = 255


def decode_base64(element: bytes) -> bytes:
    """Return the bytes of Base64 text, which may contain whitespace. Raises ValueError."""
    return base64.b64decode(element.translate(None, _WHITESPACE), validate=True)


@dataclass(frozen=True, kw_only=True)
class _BytesStep(TensorStep):
    holds_interpreter_lock = True

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        check_datatype(self.tensor, spec, BYTES)
        return (Spec(BYTES, spec.shape, self.max_result_bytes(spec)),)

    def max_result_bytes(self, spec: Spec) -> int:
        """Return the maximum length of the result's data in bytes. It is 0 for metadata."""
        return spec.max_bytes

    backward_specs = forward_specs


class Base64Decode(_BytesStep):
    """Decodes each element from Base64."""

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        elements = []
        for index, element in enumerate(unpack_bytes(tensor.data)):
            try:
                elements.append(decode_base64(element))
            except (ValueError, binascii.Error):
                raise TransformError(self.tensor, f"element {index} is not Base64") from None
        return (bytes_tensor(self.tensor, tensor.shape, pack_bytes(elements)),)


class Base64Encode(_BytesStep):
    """Encodes each element as Base64."""

    def max_result_bytes(self, spec: Spec) -> int:
        if ANY in spec.shape:
            return 0
        return spec.max_bytes * 4 // 3 + 4 * math.prod(spec.shape)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        packed = pack_bytes(base64.b64encode(element) for element in unpack_bytes(tensor.data))
        return (bytes_tensor(self.tensor, tensor.shape, packed),)


@dataclass(frozen=True, kw_only=True)
class _TextStep(TensorStep):
    datatype: Datatype = Datatype.UINT8
    length: int
    pad: int = 0
    too_long: Literal["error", "truncate"] = "error"
    holds_interpreter_lock = True

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if self.datatype not in {Datatype.UINT8, Datatype.UINT16, Datatype.INT32, Datatype.INT64}:
            return "'datatype' must be UINT8, UINT16, INT32 or INT64"
        info = np.iinfo(NUMPY_DTYPES[self.datatype])
        if not info.min <= self.pad <= info.max:
            return f"{self.datatype.v2_name} cannot hold 'pad'"
        return ""

    def _encoded_spec(self, text: Spec) -> Spec:
        check_datatype(self.tensor, text, BYTES)
        return Spec(self.datatype.v2_name, (*text.shape, self.length))

    def _decoded_spec(self, numbers: Spec) -> Spec:
        check_datatype(self.tensor, numbers, self.datatype.v2_name)
        shape = numbers.shape
        if len(shape) < 1 + self.batch or not dimensions_match(shape[-1], self.length):
            expected = f"expected {self.length} numbers in the last dimension"
            raise TransformError(self.tensor, f"{expected}, got shape {list(shape)}")
        max_bytes = 0 if ANY in shape else math.prod(shape) + 4 * math.prod(shape[:-1])
        return Spec(BYTES, shape[:-1], max_bytes)


class TextEncode(_TextStep):
    """Converts each text to a row of ``length`` numbers: the UTF-8 bytes, padded with ``pad``.
    ``too_long`` states whether a longer text is an error or is truncated."""

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        return (self._encoded_spec(before[0]),)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        return (self._decoded_spec(after[0]),)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        rows = np.full(
            (math.prod(tensor.shape), self.length), self.pad, NUMPY_DTYPES[self.datatype]
        )
        for index, element in enumerate(unpack_bytes(tensor.data)):
            if len(element) > self.length and self.too_long == "error":
                problem = f"element {index} has {len(element)} bytes; at most {self.length} fit"
                raise TransformError(self.tensor, problem)
            kept = element[: self.length]
            rows[index, : len(kept)] = np.frombuffer(kept, np.uint8)
        shape = (*tensor.shape, self.length)
        return (tensor_from_array(self.tensor, self.datatype, rows.reshape(shape)),)


class TextDecode(_TextStep):
    """Converts each row of ``length`` numbers to text, without the trailing ``pad`` values."""

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        return (self._decoded_spec(before[0]),)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        return (self._encoded_spec(after[0]),)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        array = tensor.numpy()
        is_text = array != self.pad
        # The number of values in each row before the trailing padding.
        lengths = self.length - np.argmax(is_text[..., ::-1], axis=-1)
        lengths = np.where(is_text.any(axis=-1), lengths, 0).ravel().tolist()
        rows = array.reshape(-1, self.length) if array.size else array.reshape(0, self.length)
        elements = []
        for index, (row, length) in enumerate(zip(rows, lengths, strict=False)):
            kept = row[:length]
            if length and not 0 <= kept.min() <= kept.max() <= _MAX_BYTE:
                raise TransformError(
                    self.tensor, f"row {index} has values that are not bytes (0 to 255)"
                )
            elements.append(kept.astype(np.uint8).tobytes())
        return (bytes_tensor(self.tensor, tensor.shape[:-1], pack_bytes(elements)),)
