"""Converts legacy response headers with raw data to and from canonical responses.

Classes are in the header, and values are in the raw data. Clients receive the outputs in the order
of the request. Backends return the outputs in the order of the response header, which may be any
order since v1.12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.trtis.batch_classes import read_classes, write_classes
from infergate.codecs.trtis.datatypes import DATATYPE_NUMBERS
from infergate.codecs.trtis.header_checks import CheckedOutput, is_batched
from infergate.codecs.trtis.infer_request import (
    MAX_VERSION,
    TrtisResponseOptions,
    batch_size,
    requested_outputs,
)
from infergate.codecs.trtis.messages import InferResponseHeader
from infergate.core.classification import class_count
from infergate.core.datatypes import Datatype
from infergate.core.decimals import parse_decimal
from infergate.core.errors import GatewayError, as_backend_error, backend_garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements, check_data, check_shape

# ---- to clients


def write_response(
    response: InferResponse,
    request: InferRequest,
    options: TrtisResponseOptions,
    *,
    data_type: bool,
) -> tuple[Any, Sequence[Buffer]]:
    """Return the header, and the raw data of each output. Outputs with classes and outputs in
    shared memory have empty data. Raises BACKEND_GARBAGE if the response does not match the
    request."""
    header = InferResponseHeader(
        model_name=request.model,
        model_version=model_version(response.version),
        batch_size=options.batch_size,
        id=options.id,
    )
    tensors = {tensor.name: tensor for tensor in response.outputs}
    raw: list[Buffer] = []
    for output in options.outputs:
        tensor = tensors.get(output.name)
        if tensor is None:
            raise backend_garbage(f"the response has no output '{output.name}'")
        output_header = header.output.add(name=output.name)
        if data_type:
            output_header.data_type = DATATYPE_NUMBERS[output.datatype]
        if output.classes:
            write_classes(output_header.batch_classes, tensor, options.batch_size)
            raw.append(b"")
            continue
        if tensor.datatype is not output.datatype:
            raise backend_garbage(
                f"output '{output.name}' is {tensor.datatype.value}; the model's metadata declares "
                f"{output.datatype.value}"
            )
        rank = len(options.batch)
        if tensor.shape[:rank] != options.batch:
            raise backend_garbage(
                f"output '{output.name}' has shape {list(tensor.shape)}, "
                f"but the batch size is {options.batch_size}"
            )
        output_header.raw.dims.extend(tensor.shape[rank:])
        size = len(tensor.data) if tensor.shared_memory is None else tensor.shared_memory.size
        output_header.raw.batch_byte_size = size
        output_header.raw.SetInParent()
        raw.append(tensor.data)
    return header, raw


def header_cost(tensors: Sequence[Tensor], outputs: Sequence[CheckedOutput]) -> int:
    """Return the cost of writing the header of ``tensors``, as the number of bytes of JSON that
    take the same time: a few microseconds per dimension, and nearly a microsecond per byte of a
    class."""
    sizes = {tensor.name: len(tensor.data) for tensor in tensors}
    dimensions = sum(len(tensor.shape) for tensor in tensors)
    class_bytes = sum(sizes.get(output.name, 0) for output in outputs if output.classes)
    return _DIMENSION_COST * dimensions + _CLASS_BYTE_COST * class_bytes


_DIMENSION_COST: Final = 64
_CLASS_BYTE_COST: Final = 8


def model_version(version: str) -> int:
    """Return ``version`` as a number, or 0 (the value of an unset field) if ``version`` is not a
    decimal number below 2^63."""
    return parse_decimal(version, MAX_VERSION) or 0


# ---- from backends

OutputSplitter = Callable[[Sequence[int | None]], Sequence[Buffer]]
"""Splits the raw data into outputs of the given sizes. The size of an output without raw data is
None. Raises BACKEND_GARBAGE."""


def read_response(
    header: Any,
    split_outputs: OutputSplitter,
    operation: InferRequest,
    model: ModelMetadata,
    limits: Limits,
) -> InferResponse:
    """Return the response to ``operation``, with the id of the operation. Raises BACKEND_GARBAGE,
    TOO_LARGE and NeedsOffloadError."""
    try:
        outputs = _read_outputs(header, split_outputs, operation, model, limits)
    except GatewayError as error:
        raise as_backend_error(error) from None
    return InferResponse(
        model=header.model_name or operation.model,
        version=str(header.model_version) if header.model_version > 0 else "",
        id=operation.id,
        outputs=outputs,
    )


def _tensor(
    output: Any,
    datatype: Datatype,
    shape: tuple[int, ...],
    data: Buffer,
    region_ref: RegionRef | None,
) -> Tensor:
    if not output.HasField("raw"):
        raise backend_garbage(f"output '{output.name}' has no raw data")
    if region_ref is None:
        check_data(output.name, datatype, shape, data)
        return Tensor(output.name, datatype, shape, data)
    written_region = replace(region_ref, size=output.raw.batch_byte_size)
    return Tensor(output.name, datatype, shape, b"", shared_memory=written_region)


def _read_outputs(
    header: Any,
    split_outputs: OutputSplitter,
    operation: InferRequest,
    model: ModelMetadata,
    limits: Limits,
) -> tuple[Tensor, ...]:
    requested = {
        output.name: (output, datatype) for output, datatype in requested_outputs(operation, model)
    }
    batch = (batch_size(operation, model),) if is_batched(model) else ()
    if batch and header.batch_size != batch[0]:
        raise backend_garbage(f"it has batch size {header.batch_size}, not {batch[0]}")
    if len(header.output) > limits.tensors:
        raise backend_garbage(
            f"there are {len(header.output)} outputs; the limit is {limits.tensors}"
        )
    in_shared_memory = {
        output.name for output, _ in requested.values() if output.shared_memory is not None
    }
    sizes = [
        output_header.raw.batch_byte_size
        if output_header.HasField("raw") and output_header.name not in in_shared_memory
        else None
        for output_header in header.output
    ]
    tensors: dict[str, Tensor] = {}
    elements = 0
    for output_header, data in zip(header.output, split_outputs(sizes), strict=True):
        if output_header.name not in requested or output_header.name in tensors:
            raise backend_garbage(
                f"output '{output_header.name}' was not requested, or occurs twice"
            )
        output, datatype = requested[output_header.name]
        if class_count(output) is not None:
            tensor = read_classes(output_header.name, output_header.batch_classes, batch, datatype)
        else:
            shape = check_shape(output_header.name, (*batch, *output_header.raw.dims), limits)
            if datatype is Datatype.BYTES:
                elements = add_bytes_elements(output_header.name, shape, elements, limits)
            tensor = _tensor(output_header, datatype, shape, data, output.shared_memory)
        tensors[output_header.name] = tensor
    for name in requested:
        if name not in tensors:
            raise backend_garbage(f"it has no output '{name}'")
    return tuple(tensors[name] for name in requested)
