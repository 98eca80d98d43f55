"""Converts legacy request headers with raw data to and from canonical inferences.

The model's metadata supplies datatypes and shapes. A legacy client that requests no outputs
receives no outputs. If clients of other protocols name no outputs, the header names all outputs.
The header has no datatypes, so the codec compares the tensors with the backend's metadata. Without
this comparison, a server might read FP32 data as INT32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.trtis.header_checks import (
    CheckedInput,
    CheckedOutput,
    check_batch,
    check_classes,
    check_counts,
    check_inputs,
    check_outputs,
    datatype_of,
    is_batched,
)
from infergate.codecs.trtis.messages import BodyFormat, InferRequestHeader, PicklableMessage
from infergate.codecs.trtis.options import CompatibilityLevel
from infergate.codecs.trtis.parameters import read_parameters, write_parameters
from infergate.codecs.trtis.request_status import TrtisStatusError
from infergate.core.classification import CLASSIFICATION, class_count
from infergate.core.datatypes import Datatype
from infergate.core.decimals import parse_decimal
from infergate.core.errors import GatewayError, Kind, Origin, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.records import record
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import (
    NO_PARAMETERS,
    Buffer,
    Tensor,
    add_bytes_elements,
    check_data,
)

InputSplitter = Callable[[Sequence[CheckedInput], str], Sequence[Buffer]]
"""Assigns raw data to inputs. The second argument is the model's name. Raises BAD_REQUEST."""


@record
class TrtisResponseOptions:
    """The form of the response. ``batch`` is the batch dimension of every shape, or empty if the
    model has no batch dimension. ``body_format`` is the format of the header in an HTTP body."""

    id: int
    batch_size: int
    batch: tuple[int, ...]
    outputs: tuple[CheckedOutput, ...]
    body_format: BodyFormat


# ---- from clients


def read_request(  # noqa: PLR0913, PLR0917 - a parameter per part of a request
    header: Any,
    target: InferRequest,
    split_inputs: InputSplitter,
    level: CompatibilityLevel,
    limits: Limits,
    body_format: BodyFormat = BodyFormat.BINARY,
) -> PartialInferRequest[ParsedRequest]:
    """Return the inference in ``header`` as a partial request, whose validation needs the model's
    metadata. This function and the ``complete`` of its result raise BAD_REQUEST. ``complete`` also
    raises NO_BACKEND for an unavailable model, UNSUPPORTED for an unsupported datatype, TOO_LARGE
    and NeedsOffloadError."""
    check_counts(header, limits)
    complete = partial(
        _complete, PicklableMessage(header), target, split_inputs, level, limits, body_format
    )
    return PartialInferRequest(target.model, target.version, complete)


def _complete(  # noqa: PLR0913, PLR0917 - a parameter per part of a request
    picklable_header: PicklableMessage,
    target: InferRequest,
    split_inputs: InputSplitter,
    level: CompatibilityLevel,
    limits: Limits,
    body_format: BodyFormat,
    metadata: ModelMetadata,
) -> ParsedRequest:
    if metadata.unavailable:
        text = level.unavailable_model_text(target.model, target.version)
        raise TrtisStatusError("UNAVAILABLE", text, Kind.NO_BACKEND)
    header = picklable_header.message
    check_batch(header, metadata)
    outputs = check_outputs(header, metadata, level)
    inputs = check_inputs(header, metadata, limits)
    batch = (header.batch_size,) if is_batched(metadata) else ()
    tensors = _tensors(inputs, batch, split_inputs(inputs, metadata.name), limits)
    check_classes(outputs)
    request = InferRequest(
        target.model,
        target.version,
        str(header.id or ""),
        read_parameters(header),
        tensors,
        tuple([_requested_output(output) for output in dict.fromkeys(outputs)]),
    )
    options = TrtisResponseOptions(header.id, header.batch_size, batch, outputs, body_format)
    return ParsedRequest(request, options)


def _tensors(
    inputs: Sequence[CheckedInput],
    batch: tuple[int, ...],
    buffers: Sequence[Buffer],
    limits: Limits,
) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    elements = 0
    for checked, data in zip(inputs, buffers, strict=True):
        shape = (*batch, *checked.dims)
        if checked.datatype is Datatype.BYTES:
            elements = add_bytes_elements(checked.name, shape, elements, limits)
        if checked.shared_memory is None:
            check_data(checked.name, checked.datatype, shape, data)
        tensors.append(
            Tensor(checked.name, checked.datatype, shape, data, shared_memory=checked.shared_memory)
        )
    return tuple(tensors)


def _requested_output(output: CheckedOutput) -> RequestedOutput:
    parameters = {CLASSIFICATION: output.classes} if output.classes else NO_PARAMETERS
    return RequestedOutput(output.name, parameters, output.shared_memory)


# ---- to backends

_LATEST_VERSION: Final = -1
MAX_UINT32: Final = 2**32 - 1
MAX_VERSION: Final = 2**63 - 1


def version_number(model: str, version: str) -> int:
    """Return ``version`` as a number, or -1 (the latest version) if ``version`` is empty. Raises
    BAD_REQUEST."""
    if not version:
        return _LATEST_VERSION
    number = parse_decimal(version, MAX_VERSION)
    if number is not None:
        return number
    raise bad_request(
        f"version '{version}' of model '{model}' is not found; the backend's versions are integers"
    )


def requested_outputs(
    operation: InferRequest, model: ModelMetadata
) -> list[tuple[RequestedOutput, Datatype]]:
    """Return the outputs that ``operation`` requests (by default all), with their datatypes. Raises
    BAD_REQUEST and UNSUPPORTED."""
    metadata_by_name = {metadata.name: metadata for metadata in model.outputs}
    outputs = operation.outputs or tuple(RequestedOutput(name) for name in metadata_by_name)
    for output in outputs:
        if output.name not in metadata_by_name:
            raise bad_request(
                f"unexpected inference output '{output.name}' for model '{operation.model}'"
            )
    return [(output, datatype_of("output", metadata_by_name[output.name])) for output in outputs]


def write_request(operation: InferRequest, model: ModelMetadata, *, schedules: bool) -> Any:
    """Return the header of ``operation``. If ``schedules`` is false, omit the priority and the
    timeout.

    Raises NO_BACKEND for a model that is not ready, BAD_REQUEST for values that the header cannot
    hold or that contradict ``model``, and UNSUPPORTED for datatypes that the API does not have.
    """
    if model.unavailable:
        raise GatewayError(
            Kind.NO_BACKEND,
            _unavailable_text(operation.model, operation.version),
            origin=Origin.BACKEND,
        )
    header = InferRequestHeader(batch_size=batch_size(operation, model))
    write_parameters(header, operation.id, operation.parameters, schedules=schedules)
    metadata_by_name = {metadata.name: metadata for metadata in model.inputs}
    batched = is_batched(model)
    for tensor in operation.inputs:
        metadata = metadata_by_name.get(tensor.name)
        if metadata is None:
            raise bad_request(
                f"unexpected inference input '{tensor.name}' for model '{operation.model}'"
            )
        if datatype_of("input", metadata) is not tensor.datatype:
            raise bad_request(
                f"tensor '{tensor.name}' is {tensor.datatype.value}, "
                f"but model '{operation.model}' expects {metadata.datatype}"
            )
        size = len(tensor.data) if tensor.shared_memory is None else tensor.shared_memory.size
        input_header = header.input.add(
            name=tensor.name,
            dims=tensor.shape[1:] if batched else tensor.shape,
            batch_byte_size=size if tensor.datatype is Datatype.BYTES else 0,
        )
        if tensor.shared_memory is not None:
            _write_region_ref(input_header.shared_memory, tensor.shared_memory)
    for output, _ in requested_outputs(operation, model):
        output_header = header.output.add(name=output.name)
        if (count := class_count(output)) is not None:
            output_header.cls.count = count
        if output.shared_memory is not None:
            _write_region_ref(output_header.shared_memory, output.shared_memory)
    return header


def _unavailable_text(model: str, version: str) -> str:
    """Return a server's error text for a model that is not ready."""
    if version:
        return f"Request for unknown model: '{model}' version {version} is not at ready state"
    return f"Request for unknown model: '{model}' has no available versions"


def _write_region_ref(memory: Any, region_ref: RegionRef) -> None:
    memory.name, memory.offset, memory.byte_size = (
        region_ref.region,
        region_ref.offset,
        region_ref.size,
    )


def batch_size(operation: InferRequest, model: ModelMetadata) -> int:
    """Return the batch size of the inputs. Return 1 for an unbatched model, and for a request
    without inputs. Raises BAD_REQUEST."""
    if not is_batched(model):
        return 1
    size: int | None = None
    for tensor in operation.inputs:
        if not tensor.shape:
            raise bad_request(
                f"tensor '{tensor.name}': shape [] has no batch dimension, which model "
                f"'{operation.model}' requires"
            )
        if size is not None and tensor.shape[0] != size:
            raise bad_request(
                f"tensor '{tensor.name}' has batch size {tensor.shape[0]}, "
                f"but another input has {size}"
            )
        size = tensor.shape[0]
    if size is not None and size > MAX_UINT32:
        raise bad_request(f"batch size {size} exceeds {MAX_UINT32}, the maximum of the API")
    return 1 if size is None else size
