"""Steps that convert a model's scores to probabilities and classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infergate.core.classification import descending_keys
from infergate.core.datatypes import FLOATS, INTEGERS, Datatype
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.transforms.numeric import TensorStep, float_working_bytes
from infergate.transforms.step import (
    ANY,
    BYTES,
    FLOAT_NAMES,
    Spec,
    TransformError,
    bytes_tensor,
    find_axis,
    float_elements,
    raw_elements,
    with_elements,
)

_INT64 = Datatype.INT64.v2_name
_RANKING_BYTES = 32
"""The memory in bytes per element that ranking takes: a sort key, a position, and a buffer."""
_RANKABLE = frozenset(datatype.v2_name for datatype in FLOATS | INTEGERS)


@dataclass(frozen=True, kw_only=True)
class Softmax(TensorStep):
    """Computes the softmax along ``axis``. FP16 and BF16 tensors are computed in FP32."""

    axis: int = -1

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        if spec.datatype not in FLOAT_NAMES:
            raise TransformError(self.tensor, f"{spec.datatype} must be cast to a float first")
        find_axis(self.tensor, spec, self.axis, batch=self.batch)
        return (spec,)

    def working_bytes(self, *before: Spec) -> int:
        return float_working_bytes(before[0])

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        array = float_elements(tensor)
        if array.size:
            with np.errstate(invalid="ignore"):  # infinity - infinity is NaN
                array = np.exp(array - array.max(axis=self.axis, keepdims=True))
                array /= array.sum(axis=self.axis, keepdims=True)
        return (tensor_from_array(tensor.name, tensor.datatype, array, tensor.parameters),)


@dataclass(frozen=True, kw_only=True)
class Argmax(TensorStep):
    """Finds the position of the largest value along ``axis`` as INT64, and removes this dimension.
    If several values are equal, the first position is used."""

    to: str = ""
    axis: int = -1

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.to or self.tensor,)

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        axis = _rankable_axis(self.tensor, spec, self.axis, batch=self.batch)
        if spec.shape[axis] == 0:
            raise TransformError(self.tensor, f"axis {self.axis} of {list(spec.shape)} is empty")
        return (Spec(_INT64, spec.shape[:axis] + spec.shape[axis + 1 :]),)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        indices = tensor.numpy().argmax(axis=self.axis)
        return (tensor_from_array(self.writes[0], Datatype.INT64, np.asarray(indices)),)


@dataclass(frozen=True, kw_only=True)
class TopK(TensorStep):
    """Returns the ``k`` largest values of the last dimension in descending order. Equal values keep
    their order. ``values``, ``indices`` (INT64) and ``labels`` (BYTES) are the names of the
    outputs. An output without a name is omitted."""

    k: int
    values: str = ""
    indices: str = ""
    labels: str = ""
    classes: tuple[str, ...] = ()

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.values, self.indices, self.labels)))

    @property
    def holds_interpreter_lock(self) -> bool:
        return bool(self.labels)

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if not self.writes:
            return "at least one of 'values', 'indices' and 'labels' is required"
        if len(set(self.writes)) < len(self.writes):
            return "two outputs have the same name"
        if bool(self.labels) != bool(self.classes):
            return "'labels' and 'classes' require each other"
        return ""

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        axis = _rankable_axis(self.tensor, spec, -1, batch=self.batch)
        last = spec.shape[axis]
        shape = (*spec.shape[:-1], ANY if last == ANY else min(self.k, last))
        count = 0 if ANY in shape else math.prod(shape)
        text_bytes = count * (4 + max((len(label.encode()) for label in self.classes), default=0))
        specs = replace(spec, shape=shape), Spec(_INT64, shape), Spec(BYTES, shape, text_bytes)
        names = self.values, self.indices, self.labels
        return [spec for name, spec in zip(names, specs, strict=True) if name]

    def working_bytes(self, *before: Spec) -> int:
        return _RANKING_BYTES * math.prod(before[0].shape)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        keys = descending_keys(tensor.datatype, tensor.numpy())
        order = np.argsort(keys, axis=-1, kind="stable")[..., : self.k]
        result = []
        if self.values:
            scores = raw_elements(tensor)
            values = (
                np.take_along_axis(scores, order, axis=-1) if order.size else scores[..., : self.k]
            )
            result.append(with_elements(tensor, values, self.values))
        if self.indices:
            result.append(tensor_from_array(self.indices, Datatype.INT64, order))
        if self.labels:
            texts = [label.encode() for label in self.classes]
            packed = pack_bytes(
                texts[index] if index < len(texts) else b"" for index in order.ravel().tolist()
            )
            result.append(bytes_tensor(self.labels, order.shape, packed))
        return result


def _rankable_axis(name: str, spec: Spec, axis: int, *, batch: bool) -> int:
    if spec.datatype not in _RANKABLE:
        raise TransformError(name, f"{spec.datatype} cannot be ranked; expected integers or floats")
    return find_axis(name, spec, axis, batch=batch)
