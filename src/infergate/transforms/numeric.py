"""Steps that change the datatype, the values or the layout of one numeric tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import FLOATS, INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.transforms.step import (
    ANY,
    BYTES,
    FLOAT_NAMES,
    Spec,
    Step,
    TransformError,
    check_datatype,
    check_shape,
    dimensions_match,
    find_axis,
    float_elements,
    raw_elements,
    with_elements,
)

_BF16_BYTES: Final = 64
_FLOAT_BYTES: Final = 24
"""The memory in bytes per element of numpy's intermediate arrays: for rounding to BF16, and for
computing with other floats."""
_FROM_NEEDED: Final = "'from' is required for inputs, because clients see it in the metadata"


@dataclass(frozen=True, kw_only=True)
class TensorStep(Step):
    """A step that reads one tensor. The result has the same name by default."""

    tensor: str

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.tensor,)


@dataclass(frozen=True, kw_only=True)
class Cast(TensorStep):
    """Converts a tensor to the datatype ``to``. Floats are truncated to integers, as in numpy. A
    value outside the range of ``to`` is an error, and so is NaN or infinity for an integer
    datatype. For BOOL, every value except 0 is true."""

    to: Datatype
    from_: Datatype | None = None

    def find_problem(self, *, is_input: bool) -> str:
        if Datatype.BYTES in {self.to, self.from_}:
            return "BYTES cannot be cast; text_encode and text_decode convert text"
        return _FROM_NEEDED if is_input and self.from_ is None else ""

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        if self.from_ is not None:
            check_datatype(self.tensor, spec, self.from_.v2_name)
        elif spec.datatype == BYTES:
            raise TransformError(self.tensor, "BYTES cannot be cast")
        return (Spec(self.to.v2_name, spec.shape),)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        (spec,) = after
        check_datatype(self.tensor, spec, self.to.v2_name)
        assert self.from_ is not None
        return (Spec(self.from_.v2_name, spec.shape),)

    def working_bytes(self, *before: Spec) -> int:
        return _BF16_BYTES * math.prod(before[0].shape) if self.to is Datatype.BF16 else 0

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        array = tensor.numpy()
        if self.to in INTEGERS:
            self._check_range(array)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.to is Datatype.BOOL:
                result = array.astype(bool)
            elif self.to is Datatype.BF16:
                # 32-bit integers are exact in FP64, and FP64 is rounded only once.
                fits = array.itemsize < 4 or array.dtype == np.float32
                result = array.astype(np.float32 if fits else np.float64)
            else:
                result = array.astype(NUMPY_DTYPES[self.to])
        cast = tensor_from_array(tensor.name, self.to, result, tensor.parameters)
        if self.to in FLOATS:
            self._check_finite(array, cast)
        return (cast,)

    def _check_range(self, array: npt.NDArray[Any]) -> None:
        if array.dtype == np.bool_ or not array.size:
            return
        info = np.iinfo(NUMPY_DTYPES[self.to])
        for value in (array.min().item(), array.max().item()):  # both are NaN if any element is NaN
            if not math.isfinite(value) or not info.min <= int(value) <= info.max:
                raise TransformError(self.tensor, f"{self.to.v2_name} cannot hold {value}")

    def _check_finite(self, array: npt.NDArray[Any], cast: Tensor) -> None:
        lost = np.isinf(cast.numpy())
        if lost.any():
            lost &= np.isfinite(array)
            if lost.any():
                value = array[lost][0].item()
                raise TransformError(self.tensor, f"{self.to.v2_name} cannot hold {value}")


def float_working_bytes(spec: Spec) -> int:
    """Return the memory in bytes for computing with ``float_elements`` of a tensor of ``spec``."""
    element = _BF16_BYTES if spec.datatype == Datatype.BF16.v2_name else _FLOAT_BYTES
    return element * math.prod(spec.shape)


@dataclass(frozen=True, kw_only=True)
class Scale(TensorStep):
    """Multiplies a float tensor by ``factor``, then adds ``offset``. ``factor`` and ``offset``
    contain one number, or one number for each position on ``axis``. FP16 and BF16 are computed in
    FP32."""

    factor: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)
    axis: int = -1

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if len({len(self.factor), len(self.offset)} - {1}) > 1:
            return "'factor' and 'offset' have different lengths"
        return ""

    @property
    def _count(self) -> int:
        return max(len(self.factor), len(self.offset))

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        if spec.datatype not in FLOAT_NAMES:
            raise TransformError(self.tensor, f"{spec.datatype} must be cast to a float first")
        if self._count > 1:
            axis = find_axis(self.tensor, spec, self.axis, batch=self.batch)
            if not dimensions_match(spec.shape[axis], self._count):
                actual = f"axis {self.axis} has size {spec.shape[axis]}"
                raise TransformError(self.tensor, f"{actual}; {self._count} numbers are configured")
        return (spec,)

    backward_specs = forward_specs

    def working_bytes(self, *before: Spec) -> int:
        return float_working_bytes(before[0])

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        array = float_elements(tensor)
        shape = [1] * array.ndim
        if self._count > 1:
            shape[self.axis] = self._count
        factor, offset = (
            np.array(numbers, array.dtype).reshape(shape if len(numbers) > 1 else ())
            for numbers in (self.factor, self.offset)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            result = array * factor + offset
            return (tensor_from_array(tensor.name, tensor.datatype, result, tensor.parameters),)


@dataclass(frozen=True, kw_only=True)
class Transpose(TensorStep):
    """Reorders the dimensions: dimension ``i`` of the result is dimension ``order[i]``."""

    order: tuple[int, ...]
    moves_elements: ClassVar[bool] = True

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if sorted(self.order) != list(range(len(self.order))):
            return f"'order' must contain each number from 0 to {len(self.order) - 1} once"
        if self.batch and self.order[0] != 0:
            return "'order' must begin with 0, the batch"
        return ""

    def _reorder(self, spec: Spec, order: Sequence[int]) -> Sequence[Spec]:
        if len(spec.shape) != len(order):
            actual = f"shape {list(spec.shape)} has {len(spec.shape)} dimensions"
            raise TransformError(self.tensor, f"{actual}; 'order' has {len(order)}")
        return (replace(spec, shape=tuple(spec.shape[position] for position in order)),)

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        return self._reorder(before[0], self.order)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        inverse = [self.order.index(position) for position in range(len(self.order))]
        return self._reorder(after[0], inverse)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        return (with_elements(tensor, raw_elements(tensor).transpose(self.order)),)


@dataclass(frozen=True, kw_only=True)
class Reshape(TensorStep):
    """Changes the shape to ``to``, in which one dimension may be -1. The previous shape must be
    ``from`` if it is set; a dimension of -1 in ``from`` may have any size. ``from`` and ``to`` do
    not include the batch."""

    to: tuple[int, ...]
    from_: tuple[int, ...] | None = None

    def find_problem(self, *, is_input: bool) -> str:
        if self.to.count(ANY) > 1:
            return "'to' has several dimensions of -1; the limit is one"
        return _FROM_NEEDED if is_input and self.from_ is None else ""

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        batch = spec.shape[:1] if self.batch else ()
        if self.batch and not batch:
            raise TransformError(self.tensor, "a shape without dimensions has no batch")
        if self.from_ is not None:
            check_shape(self.tensor, spec, (*batch, *self.from_))
        return (replace(spec, shape=(*batch, *self._resolve(spec.shape[len(batch) :]))),)

    def _resolve(self, shape: Sequence[int]) -> Sequence[int]:
        """Return ``to`` for tensors of ``shape``. If possible, -1 is replaced by the size."""
        if ANY in shape:
            return self.to
        count, fixed = math.prod(shape), math.prod(size for size in self.to if size != ANY)
        if ANY in self.to and fixed and count % fixed == 0:
            return [count // fixed if size == ANY else size for size in self.to]
        if ANY in self.to or count != fixed:
            raise TransformError(self.tensor, f"shape {list(shape)} cannot become {list(self.to)}")
        return self.to

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        (spec,) = after
        assert self.from_ is not None
        batch = spec.shape[:1] if self.batch else ()
        check_shape(self.tensor, spec, (*batch, *self.to))
        before = replace(spec, shape=(*batch, *self.from_))
        self.forward_specs(before)
        return (before,)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        (after,) = self.forward_specs(Spec(tensor.datatype.v2_name, tensor.shape))
        return (replace(tensor, shape=after.shape),)
