"""What the servers check of an inference, in their order and their words.

*Strategy.* A header names tensors, and may leave shapes out; datatypes it never tells. With the
model's metadata it is made whole here: which inputs there are, how many bytes each takes, which
outputs are asked for. Nothing of it reaches a backend before it passed.

*Rule.* Where a server would answer nonsense or not at all (dimensions below 0, an input given
twice, contents that contradict the shape), it is refused in words like the servers'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.codecs.trtis.datatypes import CLASSIFIED, NUMBERS, legacy_name
from infergate.codecs.trtis.options import Level
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.names import check_region
from infergate.core.places import Place
from infergate.core.records import record
from infergate.core.tensor import check_shape

_SHOWN: Final = 80


@record
class Input:
    """``size`` is in bytes, for the whole batch; ``dims`` are without the batch. One with a
    ``place`` is in shared memory, and 0 bytes of it are in the message."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    size: int
    place: Place | None = None


@record
class Output:
    """An output as it was asked for. ``classes``: how many; 0 asks for its values. ``place``: where
    in shared memory they are to go."""

    name: str
    datatype: Datatype
    classes: int
    place: Place | None = None


def is_batched(model: ModelMetadata) -> bool:
    """Whether the first dimension of every shape is the batch; not where that was not told."""
    return (model.max_batch_size or 0) > 0


def dims_of(told: TensorMetadata, model: ModelMetadata) -> tuple[int, ...]:
    """The dimensions as the API has them: without the batch."""
    return told.shape[1:] if is_batched(model) else told.shape


def datatype_of(what: str, told: TensorMetadata) -> Datatype:
    """The datatype of metadata; ``what`` is "input" or "output". Raises UNSUPPORTED."""
    datatype = BY_NAME.get(told.datatype)
    if datatype not in NUMBERS:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"{what} '{told.name}': datatype {told.datatype!r} is none of the legacy API",
        )
    return datatype


def check_counts(header: Any, limits: Limits) -> None:
    """Raises BAD_REQUEST for more tensors, or dimensions of one, than are let in."""
    for what, given in (("inputs", header.input), ("outputs", header.output)):
        if len(given) > limits.tensors:
            raise bad_request(
                f"there are {len(given)} {what}, the limit is {limits.tensors}", limit="tensors"
            )
    for each in header.input:
        if len(each.dims) > limits.rank:
            raise bad_request(
                f"input '{each.name[:_SHOWN]}' has {len(each.dims)} dimensions, "
                f"the limit is {limits.rank}",
                limit="rank",
            )


def check_batch(header: Any, model: ModelMetadata) -> None:
    """Batch sizes begin at 1, and end at 1 for models that do not batch."""
    most = model.max_batch_size or 0
    if header.batch_size < 1:
        raise bad_request(f"inference request batch-size must be >= 1 for '{model.name}'")
    if header.batch_size > max(most, 1):
        raise bad_request(f"inference request batch-size must be <= {most} for '{model.name}'")


def check_outputs(header: Any, model: ModelMetadata, level: Level) -> tuple[Output, ...]:
    """The outputs asked for, in the order they are."""
    known = {told.name: told for told in model.outputs}
    found: dict[str, Output] = {}
    asked: list[Output] = []
    for each in header.output:
        told = known.get(each.name)
        if told is None:
            raise bad_request(f"unexpected inference output '{each.name}' for model '{model.name}'")
        output = Output(each.name, datatype_of("output", told), each.cls.count, _place(each))
        before = found.setdefault(each.name, output)
        if before is not output and not (level.repeats_outputs and before == output):
            raise bad_request(f"output '{each.name}' already requested")
        asked.append(output)
    return tuple(asked)


def check_inputs(header: Any, model: ModelMetadata, limits: Limits) -> tuple[Input, ...]:
    """The inputs, in the order they are given."""
    if len(header.input) != len(model.inputs):
        raise bad_request(
            f"expected {len(model.inputs)} inputs but got {len(header.input)} inputs "
            f"for model '{model.name}'"
        )
    known = {told.name: told for told in model.inputs}
    found: dict[str, Input] = {}
    for each in header.input:
        told = known.get(each.name)
        if told is None:
            raise bad_request(f"unexpected inference input '{each.name}' for model '{model.name}'")
        if each.name in found:
            raise bad_request(f"input '{each.name}' already exists in request")
        datatype = datatype_of("input", told)
        dims = check_shape(each.name, _dims(each, dims_of(told, model), model), limits)
        size = each.batch_byte_size
        if datatype is not Datatype.BYTES:
            fixed = header.batch_size * math.prod(dims) * datatype.itemsize
            if size not in (0, fixed):
                raise bad_request(
                    f"specific batch-byte-size for input '{each.name}' does not match expected "
                    f"byte-size calculated from shape and datatype for model '{model.name}'"
                )
            size = fixed
        place = _place(each)
        if place is not None:
            if size not in (0, place.size):
                raise bad_request(
                    f"unexpected shared-memory size {place.size} for input '{each.name}', "
                    f"expecting {size} for model '{model.name}'"
                )
            size = 0
        found[each.name] = Input(each.name, datatype, dims, size, place)
    return tuple(found.values())


def _dims(given: Any, expected: Sequence[int], model: ModelMetadata) -> Sequence[int]:
    """The dimensions of an input, its model's where the request has none."""
    if not given.dims:
        if any(dimension < 0 for dimension in expected):
            raise bad_request(
                f"model supports variable-size for input '{given.name}', request must specify "
                f"input shape for model '{model.name}'"
            )
        return expected
    fits = len(given.dims) == len(expected) and all(
        one >= 0 and other in (one, -1) for one, other in zip(given.dims, expected, strict=True)
    )
    if not fits:
        raise bad_request(
            f"unexpected shape for input '{given.name}' for model '{model.name}'. "
            f"Expected {_told(expected)}, got {_told(given.dims)}"
        )
    return tuple(given.dims)


def check_classes(outputs: Iterable[Output]) -> None:
    """Classes are found among numbers of some datatypes only."""
    for output in outputs:
        if output.classes and output.datatype not in CLASSIFIED:
            raise bad_request(
                f"class result not available for output '{output.name}' due to unsupported type "
                f"'{legacy_name(output.datatype)}'"
            )


def _place(tensor: Any) -> Place | None:
    """Where in shared memory an input or output of a header is."""
    if not tensor.HasField("shared_memory"):
        return None
    told = tensor.shared_memory
    check_region(told.name)
    return Place(told.name, told.offset, told.byte_size)


def _told(dims: Iterable[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
