"""Converts between InferResponse messages and canonical inference responses. The messages contain
no names; the order of the tensors identifies the outputs.

*Rule 1.* A client that names outputs receives these outputs in the same order, with the same
repetitions. A client that names no outputs receives the outputs in the metadata, in the metadata's
order, and then all other outputs.

*Rule 2.* If a response has as many tensors as the request has outputs, the tensors are the
requested outputs. If the response has as many tensors as the model has outputs, the tensors are the
model's outputs (graphpipe-go's Serve). If all three numbers are equal but the names differ, the
tensors get the names of the model's outputs, and a request for any other output fails. Any other
number of tensors is an error if it is 0 or if the client named outputs. Otherwise, the outputs are
called ``output0``, ``output1``, …, as in graphpipe-go.

*Rule 3.* As in the Python client, a response with both errors and outputs is an error. If a
response has outputs, invalid errors are ignored, because graphpipe-py with flatbuffers 2.0.7 or
later writes an invalid empty vector of errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from infergate.codecs.graphpipe import flatbuffer_writer
from infergate.codecs.graphpipe.errors import error_of_response
from infergate.codecs.graphpipe.fields import ERRORS, OUTPUT_TENSORS
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferTable
from infergate.codecs.graphpipe.infer_request import OutputSelection, backend_outputs
from infergate.codecs.graphpipe.tensors import read_tensors
from infergate.core.errors import GatewayError, Kind, backend_garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Buffer, Tensor

# ---- for clients


def write_response(response: InferResponse, selection: OutputSelection) -> list[Buffer]:
    """Write ``response`` as an InferResponse. Raises BACKEND_GARBAGE, UNSUPPORTED and TOO_LARGE."""
    if not selection.is_explicit:
        positions = {name: position for position, name in enumerate(selection.outputs)}
        ordered = sorted(
            response.outputs, key=lambda tensor: positions.get(tensor.name, len(positions))
        )
        return flatbuffer_writer.write_response(ordered)
    tensors = {tensor.name: tensor for tensor in response.outputs}
    for name in selection.outputs:
        if name not in tensors:
            raise backend_garbage(f"the response has no output '{name}'")
    return flatbuffer_writer.write_response([tensors[name] for name in selection.outputs])


# ---- from backends


def read_response(
    table: FlatbufferTable, request: InferRequest, model: ModelMetadata, limits: Limits
) -> InferResponse:
    """Parse the response to ``request``. Raises the backend's error, BACKEND_GARBAGE, BAD_REQUEST,
    TOO_LARGE and NeedsOffloadError."""
    tables = table.tables(OUTPUT_TENSORS, limits.tensors)
    if error := _read_error(table, limits, has_outputs=bool(tables)):
        raise error
    names = _output_names(len(tables), request, model)
    tensors = read_tensors(zip(names, tables, strict=True), limits)
    return InferResponse(
        request.model, request.version, request.id, outputs=_select_outputs(tensors, request)
    )


def _read_error(
    table: FlatbufferTable, limits: Limits, *, has_outputs: bool
) -> GatewayError | None:
    try:
        errors = table.tables(ERRORS, limits.tensors)
        return error_of_response(errors) if errors else None
    except GatewayError as unreadable:
        if has_outputs and unreadable.kind is Kind.BAD_REQUEST:
            return None
        raise


def _output_names(count: int, request: InferRequest, model: ModelMetadata) -> Sequence[str]:
    """Return the names of ``count`` outputs (Rule 2)."""
    requested = backend_outputs(request, model)
    names = [output.name for output in model.outputs]
    if names and not count:
        raise backend_garbage("the backend's response has no outputs")
    if len(requested) == count and (len(names) != count or set(requested) == set(names)):
        return requested
    if len(names) == count:
        return names
    if request.outputs:
        raise backend_garbage(
            f"{len(requested)} outputs were requested, but the backend returned {count}"
        )
    return [f"output{index}" for index in range(count)]


def _select_outputs(tensors: Sequence[Tensor], request: InferRequest) -> tuple[Tensor, ...]:
    """Return the requested outputs in order, or all outputs if the client named no outputs."""
    if not request.outputs:
        return tuple(tensors)
    tensor_by_name = {tensor.name: tensor for tensor in tensors}
    for output in request.outputs:
        if output.name not in tensor_by_name:
            raise backend_garbage(f"the backend's response has no output '{output.name}'")
    return tuple(tensor_by_name[output.name] for output in request.outputs)
