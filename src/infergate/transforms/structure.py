"""Steps that rename, add, remove, join and split tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, bf16_from_float32, pack_bytes
from infergate.transforms.numeric import TensorStep
from infergate.transforms.step import (
    ANY,
    NO_SUCH_OUTPUT,
    Spec,
    Step,
    TransformError,
    check_datatype,
    check_shape,
    dimensions_match,
    find_axis,
    raw_elements,
    take,
    with_elements,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Rename(Step):
    """Renames tensors. ``names`` maps old names to new names."""

    names: Mapping[str, str]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.names)

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(self.names.values())

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        return "two tensors get the same name" if len(set(self.writes)) < len(self.names) else ""

    def is_applicable(self, names: Mapping[str, Any]) -> bool:
        return any(name in names for name in self.names)

    def forward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return _rename_keys(specs, self.names)

    def backward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        inverse = {new: old for old, new in self.names.items()}
        take(specs, self.writes)
        return _rename_keys(specs, inverse)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor if tensor.name == name else replace(tensor, name=name)
            for name, tensor in _rename_keys(tensors, self.names).items()
        }

    def sources(self, names: Sequence[str]) -> list[str]:
        inverse = {new: old for old, new in self.names.items()}
        for name in names:
            if name in self.names and name not in inverse:
                raise TransformError(name, NO_SUCH_OUTPUT)
        return [inverse.get(name, name) for name in names]


def _rename_keys(items: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, item in items.items():
        new = names.get(name, name)
        if new in result:
            raise TransformError(new, "there are two tensors with this name")
        result[new] = item
    return result


@dataclass(frozen=True, kw_only=True)
class Copy(TensorStep):
    """Adds a copy of a tensor under the name ``to``."""

    to: str

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.tensor, self.to)

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        return (before[0], before[0])

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        original, copy = after
        check_datatype(self.to, copy, original.datatype)
        check_shape(self.to, copy, original.shape)
        shape = (max(pair) for pair in zip(original.shape, copy.shape, strict=True))
        return (replace(original, shape=tuple(shape)),)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        return (before[0], replace(before[0], name=self.to))


@dataclass(frozen=True, kw_only=True)
class _NamedOutputs(Step):
    """A step that keeps or removes the outputs ``names``."""

    names: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.names

    def is_applicable(self, names: Mapping[str, Any]) -> bool:
        del names
        return True

    def forward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return self._remaining(specs)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._remaining(tensors)

    def sources(self, names: Sequence[str]) -> list[str]:
        remaining = self._remaining(dict.fromkeys(names))
        for name in names:
            if name not in remaining:
                raise TransformError(name, NO_SUCH_OUTPUT)
        return list(names)

    def _remaining(self, items: Mapping[str, T]) -> dict[str, T]:
        raise NotImplementedError


class Select(_NamedOutputs):
    """Keeps the outputs ``names``, in this order."""

    def _remaining(self, items: Mapping[str, T]) -> dict[str, T]:
        return {name: items[name] for name in self.names if name in items}


class Drop(_NamedOutputs):
    """Removes the outputs ``names``."""

    def _remaining(self, items: Mapping[str, T]) -> dict[str, T]:
        return {name: item for name, item in items.items() if name not in self.names}


@dataclass(frozen=True, kw_only=True)
class Constant(TensorStep):
    """Adds an input that clients do not send. ``value`` contains one element, or all elements of
    ``shape`` in row-major order. ``shape`` does not include the batch, and ``value`` is repeated
    for each item of the batch."""

    datatype: Datatype
    shape: tuple[int, ...] = ()
    value: tuple[Any, ...]

    def find_problem(self, *, is_input: bool) -> str:
        del is_input
        if any(size < 0 for size in self.shape):
            return "'shape' must not have variable dimensions"
        count = math.prod(self.shape)
        if len(self.value) not in {1, count}:
            return f"'value' has {len(self.value)} elements; shape {list(self.shape)} has {count}"
        try:
            self._encoded  # noqa: B018 - the conversion checks the value
        except (ValueError, OverflowError, TypeError, AttributeError):
            return f"'value' has an element that is not {self.datatype.v2_name}"
        return ""

    @cached_property
    def _data(self) -> bytes:
        values = self._encoded
        return values * math.prod(self.shape) if len(self.value) == 1 else values

    @property
    def _encoded(self) -> bytes:
        """The bytes of ``value``, without repetition."""
        values = self.value
        if self.datatype is Datatype.BYTES:
            return pack_bytes(value.encode() for value in values)
        if any(isinstance(value, str) for value in values):
            raise ValueError
        if self.datatype in INTEGERS and any(type(value) is not int for value in values):
            raise ValueError
        if self.datatype is Datatype.BF16:
            return bf16_from_float32(np.array(values, np.float32)).tobytes()
        return np.array(values, NUMPY_DTYPES[self.datatype]).tobytes()

    def forward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        if self.tensor in specs:
            raise TransformError(self.tensor, "the route sets this input; do not send it")
        batch = _batch_size(specs) if self.batch else ()
        data_bytes = len(self._data) * math.prod(batch) if self.datatype is Datatype.BYTES else 0
        spec = Spec(self.datatype.v2_name, (*batch, *self.shape), max(data_bytes, 0))
        return {**specs, self.tensor: spec}

    def backward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        (expected,) = take(specs, self.reads)
        check_datatype(self.tensor, expected, self.datatype.v2_name)
        batch = expected.shape[:1] if self.batch else ()
        check_shape(self.tensor, expected, (*batch, *self.shape))
        return {name: spec for name, spec in specs.items() if name != self.tensor}

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        specs = {name: Spec("", tensor.shape) for name, tensor in tensors.items()}
        batch = _batch_size(specs) if self.batch else ()
        data = self._data * math.prod(batch)
        shape = (*batch, *self.shape)
        return {**tensors, self.tensor: Tensor(self.tensor, self.datatype, shape, data)}


def _batch_size(specs: Mapping[str, Spec]) -> tuple[int, ...]:
    """Return the first dimension of the first tensor with dimensions, or 1 if there is no such
    tensor, as a shape of one dimension."""
    return next((spec.shape[:1] for spec in specs.values() if spec.shape), (1,))


class Default(Constant):
    """Adds an input, like ``Constant``, if the client does not send it."""

    def forward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return dict(specs) if self.tensor in specs else super().forward(specs)

    def backward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        super().backward(specs)
        return dict(specs)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors) if self.tensor in tensors else super().apply(tensors)


@dataclass(frozen=True, kw_only=True)
class Concatenate(Step):
    """Joins ``tensors`` along ``axis`` into the tensor ``to``."""

    tensors: tuple[str, ...]
    to: str
    moves_elements: ClassVar[bool] = True
    axis: int = -1

    @property
    def reads(self) -> tuple[str, ...]:
        return self.tensors

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.to,)

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        first = before[0]
        axis = find_axis(self.tensors[0], first, self.axis, batch=self.batch)
        shape = list(first.shape)
        for name, spec in zip(self.tensors, before, strict=True):
            check_datatype(name, spec, first.datatype)
            expected = [*shape[:axis], ANY, *shape[axis + 1 :]]
            check_shape(name, spec, expected)
            shape = [max(pair) for pair in zip(shape, spec.shape, strict=True)]
        sizes = [spec.shape[axis] for spec in before]
        shape[axis] = ANY if ANY in sizes else sum(sizes)
        return (Spec(first.datatype, tuple(shape), sum(spec.max_bytes for spec in before)),)

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        (spec,) = after
        axis = find_axis(self.to, spec, self.axis, batch=self.batch)
        return [_with_dimension(spec, axis, ANY)] * len(self.tensors)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        joined = np.concatenate([raw_elements(tensor) for tensor in before], axis=self.axis)
        return (with_elements(before[0], joined, self.to),)


@dataclass(frozen=True, kw_only=True)
class Split(TensorStep):
    """Splits a tensor along ``axis``. ``to`` maps the name of each part to its size."""

    to: Mapping[str, int]
    axis: int = -1
    moves_elements: ClassVar[bool] = True

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(self.to)

    @property
    def _total(self) -> int:
        return sum(self.to.values())

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        (spec,) = before
        axis = find_axis(self.tensor, spec, self.axis, batch=self.batch)
        if not dimensions_match(spec.shape[axis], self._total):
            actual = f"axis {self.axis} has size {spec.shape[axis]}"
            raise TransformError(
                self.tensor, f"{actual}; the sizes in 'to' add up to {self._total}"
            )
        return [_with_dimension(spec, axis, size) for size in self.to.values()]

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        first = after[0]
        axis = find_axis(next(iter(self.to)), first, self.axis, batch=self.batch)
        for (name, size), spec in zip(self.to.items(), after, strict=True):
            check_datatype(name, spec, first.datatype)
            check_shape(name, spec, _with_dimension(first, axis, size).shape)
        return (_with_dimension(first, axis, self._total),)

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        (tensor,) = before
        cuts = np.cumsum(list(self.to.values()))[:-1]
        parts = np.split(raw_elements(tensor), cuts, axis=self.axis)
        return [
            with_elements(tensor, part, name) for name, part in zip(self.to, parts, strict=True)
        ]


def _with_dimension(spec: Spec, axis: int, size: int) -> Spec:
    return replace(spec, shape=(*spec.shape[:axis], size, *spec.shape[axis + 1 :]))
