"""The contract of a transform step.

A step replaces the tensors in ``reads`` with the tensors in ``writes``. ``apply`` replaces tensors.
``forward`` and ``backward`` replace specs: ``forward`` returns the specs after the step, and
``backward`` returns the specs before the step. ``forward`` makes all checks that need no data, so
it validates a request before ``apply`` does any work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import DATATYPES_BY_NAME, FLOATS, NUMPY_DTYPES, Datatype
from infergate.core.records import record
from infergate.core.request_context import RequestContext
from infergate.core.tensor import NO_PARAMETERS, Buffer, Tensor, pack_bytes

T = TypeVar("T")
ANY: Final = -1
"""A dimension that may have any size."""
FLOAT_NAMES: Final = frozenset(datatype.v2_name for datatype in FLOATS)
BYTES: Final = Datatype.BYTES.v2_name
NO_SUCH_OUTPUT: Final = "the model has no such output on this route"


class TransformError(Exception):
    """A tensor or its spec does not fit a step. ``problem`` follows the text "input 'x': " or
    "output 'x': " in an error message."""

    def __init__(self, tensor: str, problem: str) -> None:
        super().__init__(tensor, problem)
        self.tensor = tensor
        self.problem = problem


@record
class Spec:
    """The datatype (a name from V2 metadata, such as ``FP32``) and the shape of a tensor.
    ``max_bytes`` is the maximum length of a BYTES tensor's data, or 0 in metadata."""

    datatype: str
    shape: tuple[int, ...]
    max_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The maximum size of the data in bytes. The shape must not have variable dimensions."""
        if self.datatype == BYTES:
            return self.max_bytes
        return math.prod(self.shape) * DATATYPES_BY_NAME[self.datatype].itemsize


def spec_of(tensor: Tensor) -> Spec:
    """Return the spec of ``tensor``."""
    return Spec(tensor.datatype.v2_name, tensor.shape, len(tensor.data))


@dataclass(frozen=True, kw_only=True)
class Step:
    """The base class of steps. ``batch`` means that the first dimension of every tensor is the
    batch."""

    batch: bool = True
    moves_elements: ClassVar[bool] = False
    """Whether the step moves single elements. Python code moves BYTES elements, and numpy moves
    other elements."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the tensors that the step replaces."""
        raise NotImplementedError

    @property
    def writes(self) -> tuple[str, ...]:
        """The names of the tensors that replace the tensors in ``reads``."""
        return self.reads

    @property
    def holds_interpreter_lock(self) -> bool:
        """Whether the step always runs Python code for each element. Such code holds the
        interpreter lock, so it delays the event loop even from a thread."""
        return False

    def is_interpreted(self, specs: Mapping[str, Spec]) -> bool:
        """Return whether the step runs Python code for each element of tensors of ``specs``."""
        return self.holds_interpreter_lock or (
            self.moves_elements
            and any(name in specs and specs[name].datatype == BYTES for name in self.reads)
        )

    def working_bytes(self, *before: Spec) -> int:  # noqa: ARG002
        """Return the memory in bytes that the step takes in addition to its results."""
        return 0

    def find_problem(self, *, is_input: bool) -> str:
        """Return the problem with the step's settings, or an empty string."""
        del is_input
        return ""

    def is_applicable(self, names: Mapping[str, Any]) -> bool:
        """Return whether ``names`` contains the tensors that the step needs."""
        return all(name in names for name in self.reads)

    def forward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return the specs after the step. Raises TransformError."""
        after = self.forward_specs(*take(specs, self.reads))
        return substitute(specs, self.reads, dict(zip(self.writes, after, strict=True)))

    def backward(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return the specs before the step, for which ``forward`` returns ``specs``. Raises
        TransformError."""
        before = self.backward_specs(*take(specs, self.writes))
        return substitute(specs, self.writes, dict(zip(self.reads, before, strict=True)))

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors after the step. The caller has checked the specs with ``forward``.
        Raises TransformError for invalid data."""
        after = self.apply_tensors(*take(tensors, self.reads))
        return substitute(tensors, self.reads, dict(zip(self.writes, after, strict=True)))

    def sources(self, names: Sequence[str]) -> list[str]:
        """Return the names of the tensors before the step that are needed for the tensors ``names``
        after the step. Raises TransformError for a name that the step removes."""
        result: dict[str, None] = {}
        for name in names:
            if name in self.writes:
                result.update(dict.fromkeys(self.reads))
            elif name in self.reads:
                raise TransformError(name, NO_SUCH_OUTPUT)
            else:
                result[name] = None
        return list(result)

    # ---- most steps implement these methods

    def forward_specs(self, *before: Spec) -> Sequence[Spec]:
        """Return the specs of ``writes`` for the specs of ``reads``."""
        raise NotImplementedError

    def backward_specs(self, *after: Spec) -> Sequence[Spec]:
        """Return the specs of ``reads`` for the specs of ``writes``."""
        raise NotImplementedError

    def apply_tensors(self, *before: Tensor) -> Sequence[Tensor]:
        """Return the tensors in ``writes`` for the tensors in ``reads``."""
        raise NotImplementedError


class AsyncStep(Step):
    """A step that runs as a coroutine, not in the helper processes or threads for transforms. It is
    the only step of its ``StepGroup``."""

    async def run(
        self, tensors: Mapping[str, Tensor], context: RequestContext
    ) -> dict[str, Tensor]:
        """Return the tensors after the step. Raises GatewayError and TransformError."""
        raise NotImplementedError


def take(items: Mapping[str, T], names: Sequence[str]) -> list[T]:
    """Return the items called ``names``. Raises TransformError if an item is missing."""
    for name in names:
        if name not in items:
            raise TransformError(name, "there is no such tensor")
    return [items[name] for name in names]


def substitute(items: Mapping[str, T], old: Sequence[str], new: Mapping[str, T]) -> dict[str, T]:
    """Return ``items`` with ``old`` replaced by ``new``. Raises TransformError if another item
    already has a new name."""
    for name in new:
        if name in items and name not in old:
            raise TransformError(name, "there are two tensors with this name")
    result: dict[str, T] = {}
    pending = dict(new)
    for name, item in items.items():
        if name not in old:
            result[name] = item
        else:
            result.update(pending)
            pending = {}
    return result | pending


# ---- checks of specs


def check_datatype(name: str, spec: Spec, expected: str) -> None:
    """Raise TransformError if ``spec`` does not have the datatype ``expected``."""
    if spec.datatype != expected:
        raise TransformError(name, f"expected {expected}, got {spec.datatype}")


def check_shape(name: str, spec: Spec, expected: Sequence[int]) -> None:
    """Raise TransformError if ``spec`` cannot have the shape ``expected``."""
    fits = len(spec.shape) == len(expected) and all(map(dimensions_match, spec.shape, expected))
    if not fits:
        raise TransformError(name, f"expected shape {list(expected)}, got {list(spec.shape)}")


def dimensions_match(first: int, second: int) -> bool:
    """Return whether two dimensions can be equal."""
    return first == second or ANY in {first, second}


def find_axis(name: str, spec: Spec, axis: int, *, batch: bool) -> int:
    """Return the index of ``axis``, which counts from the end if it is negative. Raises
    TransformError if there is no such dimension, or if the dimension is the batch."""
    rank = len(spec.shape)
    position = axis + rank if axis < 0 else axis
    if not 0 <= position < rank:
        raise TransformError(name, f"shape {list(spec.shape)} has no axis {axis}")
    if batch and position == 0:
        raise TransformError(name, f"axis {axis} of shape {list(spec.shape)} is the batch")
    return position


# ---- arrays


def raw_elements(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the elements of ``tensor`` for a step that only moves elements. Unlike
    ``Tensor.numpy``, this function returns BF16 elements as 16-bit patterns."""
    if tensor.datatype is Datatype.BF16:
        return np.frombuffer(tensor.data, NUMPY_DTYPES[Datatype.BF16]).reshape(tensor.shape)
    return tensor.numpy()


def with_elements(tensor: Tensor, array: npt.NDArray[Any], name: str = "") -> Tensor:
    """Return a tensor with the elements ``array``, which come from ``raw_elements(tensor)``. The
    result has the name and the parameters of ``tensor``. If ``name`` is given, the result has this
    name and no parameters."""
    parameters = NO_PARAMETERS if name else tensor.parameters
    if tensor.datatype is Datatype.BYTES:
        data: Buffer = pack_bytes(array.ravel().tolist())
    else:
        data = memoryview(array.tobytes())
    return Tensor(name or tensor.name, tensor.datatype, tuple(array.shape), data, parameters)


def bytes_tensor(name: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    """Return a BYTES tensor of packed elements. It has no parameters, because the parameters of the
    step's input describe different contents."""
    return Tensor(name, Datatype.BYTES, shape, data, NO_PARAMETERS)


def float_elements(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the elements of a float tensor: FP64 elements as FP64, and other elements as FP32."""
    array = tensor.numpy()
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)
