"""Validates an inference header as legacy servers do, in the same order and with their messages.

A header has no datatypes and may omit shapes, so the model's metadata supplies both. The codec also
rejects requests that break servers (dimensions below 0, duplicate inputs, contents that contradict
the shape), with similar messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.codecs.trtis.datatypes import CLASSIFIABLE, DATATYPE_NUMBERS, legacy_name
from infergate.codecs.trtis.options import CompatibilityLevel
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.name_rules import check_region_name
from infergate.core.records import record
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import check_shape

_MAX_SHOWN: Final = 80


@record
class CheckedInput:
    """A validated input. ``dims`` is its shape without the batch dimension, and ``size`` is the
    size in bytes of its data in the message."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    size: int
    shared_memory: RegionRef | None = None


@record
class CheckedOutput:
    """A requested output. ``classes`` is the number of requested classes, or 0 if the client
    requests the values."""

    name: str
    datatype: Datatype
    classes: int
    shared_memory: RegionRef | None = None


def is_batched(model: ModelMetadata) -> bool:
    """Return whether the first dimension of every shape in the metadata is the batch dimension."""
    return (model.max_batch_size or 0) > 0


def dims_without_batch(tensor: TensorMetadata, model: ModelMetadata) -> tuple[int, ...]:
    """Return the shape of ``tensor`` without the batch dimension, as in messages of the API."""
    return tensor.shape[1:] if is_batched(model) else tensor.shape


def datatype_of(label: str, tensor: TensorMetadata) -> Datatype:
    """Return the datatype of ``tensor``. ``label`` is "input" or "output". Raises UNSUPPORTED."""
    datatype = DATATYPES_BY_NAME.get(tensor.datatype)
    if datatype not in DATATYPE_NUMBERS:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"{label} '{tensor.name}': datatype {tensor.datatype!r} does not exist in the "
            "legacy API",
        )
    return datatype


def check_counts(header: Any, limits: Limits) -> None:
    """Raise BAD_REQUEST for too many tensors or dimensions."""
    for label, tensors in (("inputs", header.input), ("outputs", header.output)):
        if len(tensors) > limits.tensors:
            raise bad_request(
                f"there are {len(tensors)} {label}; the limit is {limits.tensors}", limit="tensors"
            )
    for tensor in header.input:
        if len(tensor.dims) > limits.rank:
            raise bad_request(
                f"input '{tensor.name[:_MAX_SHOWN]}' has {len(tensor.dims)} dimensions; "
                f"the limit is {limits.rank}",
                limit="rank",
            )


def check_batch(header: Any, model: ModelMetadata) -> None:
    """Raise BAD_REQUEST unless the batch size is from 1 to the model's maximum, which is 1 for a
    model without batching."""
    max_batch_size = model.max_batch_size or 0
    if header.batch_size < 1:
        raise bad_request(f"inference request batch-size must be >= 1 for '{model.name}'")
    if header.batch_size > max(max_batch_size, 1):
        raise bad_request(
            f"inference request batch-size must be <= {max_batch_size} for '{model.name}'"
        )


def check_outputs(
    header: Any, model: ModelMetadata, level: CompatibilityLevel
) -> tuple[CheckedOutput, ...]:
    """Validate the requested outputs in header order. Raises BAD_REQUEST and UNSUPPORTED."""
    metadata_by_name = {metadata.name: metadata for metadata in model.outputs}
    by_name: dict[str, CheckedOutput] = {}
    outputs: list[CheckedOutput] = []
    for requested in header.output:
        metadata = metadata_by_name.get(requested.name)
        if metadata is None:
            raise bad_request(
                f"unexpected inference output '{requested.name}' for model '{model.name}'"
            )
        output = CheckedOutput(
            requested.name,
            datatype_of("output", metadata),
            requested.cls.count,
            _region_ref(requested),
        )
        previous = by_name.setdefault(requested.name, output)
        if previous is not output and not (level.allows_repeated_outputs and previous == output):
            raise bad_request(f"output '{requested.name}' already requested")
        outputs.append(output)
    return tuple(outputs)


def check_inputs(header: Any, model: ModelMetadata, limits: Limits) -> tuple[CheckedInput, ...]:
    """Validate the inputs in header order. Raises BAD_REQUEST and UNSUPPORTED."""
    if len(header.input) != len(model.inputs):
        raise bad_request(
            f"expected {len(model.inputs)} inputs but got {len(header.input)} inputs "
            f"for model '{model.name}'"
        )
    metadata_by_name = {metadata.name: metadata for metadata in model.inputs}
    inputs: dict[str, CheckedInput] = {}
    for entry in header.input:
        metadata = metadata_by_name.get(entry.name)
        if metadata is None:
            raise bad_request(f"unexpected inference input '{entry.name}' for model '{model.name}'")
        if entry.name in inputs:
            raise bad_request(f"input '{entry.name}' already exists in request")
        datatype = datatype_of("input", metadata)
        dims = check_shape(
            entry.name, _input_dims(entry, dims_without_batch(metadata, model), model), limits
        )
        size = entry.batch_byte_size
        if datatype is not Datatype.BYTES:
            expected = header.batch_size * math.prod(dims) * datatype.itemsize
            if size not in (0, expected):
                raise bad_request(
                    f"specific batch-byte-size for input '{entry.name}' does not match expected "
                    f"byte-size calculated from shape and datatype for model '{model.name}'"
                )
            size = expected
        region_ref = _region_ref(entry)
        if region_ref is not None:
            if size not in (0, region_ref.size):
                raise bad_request(
                    f"unexpected shared-memory size {region_ref.size} for input '{entry.name}', "
                    f"expecting {size} for model '{model.name}'"
                )
            size = 0
        inputs[entry.name] = CheckedInput(entry.name, datatype, dims, size, region_ref)
    return tuple(inputs.values())


def _input_dims(tensor: Any, expected: Sequence[int], model: ModelMetadata) -> Sequence[int]:
    """Return the dimensions of an input. If the header has no dimensions, return the dimensions in
    the model's metadata."""
    if not tensor.dims:
        if any(dimension < 0 for dimension in expected):
            raise bad_request(
                f"model supports variable-size for input '{tensor.name}', request must specify "
                f"input shape for model '{model.name}'"
            )
        return expected
    fits = len(tensor.dims) == len(expected) and all(
        size >= 0 and limit in (size, -1) for size, limit in zip(tensor.dims, expected, strict=True)
    )
    if not fits:
        raise bad_request(
            f"unexpected shape for input '{tensor.name}' for model '{model.name}'. "
            f"Expected {_format_dims(expected)}, got {_format_dims(tensor.dims)}"
        )
    return tuple(tensor.dims)


def check_classes(outputs: Iterable[CheckedOutput]) -> None:
    """Raise BAD_REQUEST if a client requests classes of a datatype that servers cannot classify."""
    for output in outputs:
        if output.classes and output.datatype not in CLASSIFIABLE:
            raise bad_request(
                f"class result not available for output '{output.name}' due to unsupported type "
                f"'{legacy_name(output.datatype)}'"
            )


def _region_ref(tensor: Any) -> RegionRef | None:
    if not tensor.HasField("shared_memory"):
        return None
    region = tensor.shared_memory
    check_region_name(region.name)
    return RegionRef(region.name, region.offset, region.byte_size)


def _format_dims(dims: Iterable[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
