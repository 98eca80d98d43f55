"""Converts between InferRequest messages and canonical inference requests.

*Rule 1.* A request to a backend lists outputs in the order of the backend's metadata, because
graphpipe-go's Serve ignores output names and returns all outputs in that order.

*Rule 2.* If the client names no outputs, the request lists the outputs in the metadata. If an input
and an output in the metadata have the same name, the metadata lists the nodes of a graph
(graphpipe-tf). The request lists no outputs, and the backend returns its default outputs.

*Rule 3.* A request for an output that is not in the metadata is rejected, because a server that
ignores names would return a different output. Exceptions are metadata without outputs, and a
backend with a graph, which can return any of its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.graphpipe import flatbuffer_writer
from infergate.codecs.graphpipe.config_text import read_config, write_config
from infergate.codecs.graphpipe.fields import CONFIG, INPUT_NAMES, INPUT_TENSORS, OUTPUT_NAMES
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferTable
from infergate.codecs.graphpipe.name_resolution import resolve_inputs, resolve_outputs
from infergate.codecs.graphpipe.tensors import read_tensors
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.records import record
from infergate.core.tensor import Buffer, Parameters, Tensor


@record
class OutputSelection:
    """The requested outputs, in order. If ``is_explicit`` is false, the client named no outputs,
    and ``outputs`` are the outputs in the metadata."""

    outputs: tuple[str, ...]
    is_explicit: bool


# ---- for clients


def read_request(
    table: FlatbufferTable, model: str, version: str, limits: Limits
) -> PartialInferRequest[ParsedRequest]:
    """Parse an inference. Raises BAD_REQUEST, TOO_LARGE and NeedsOffloadError. The result's
    ``complete`` raises BAD_REQUEST."""
    parameters = read_config(table.data(CONFIG))
    tables = table.tables(INPUT_TENSORS, limits.tensors)
    inputs = table.texts(INPUT_NAMES, len(tables), truncate=True)
    inputs += [""] * (len(tables) - len(inputs))
    labels = (name or f"input {index}" for index, name in enumerate(inputs))
    tensors = read_tensors(zip(labels, tables, strict=True), limits)
    outputs = table.texts(OUTPUT_NAMES, limits.tensors)
    complete = partial(_complete, model, version, parameters, tensors, inputs, outputs)
    return PartialInferRequest(model, version, complete)


def _complete(  # noqa: PLR0913, PLR0917
    model: str,
    version: str,
    parameters: Parameters,
    tensors: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: ModelMetadata,
) -> ParsedRequest:
    names = resolve_inputs(inputs, metadata)
    requested = resolve_outputs(outputs, metadata)
    request = InferRequest(
        model,
        version,
        parameters=parameters,
        inputs=tuple(
            [
                tensor if tensor.name == name else replace(tensor, name=name)
                for tensor, name in zip(tensors, names, strict=True)
            ]
        ),
        outputs=tuple(map(RequestedOutput, dict.fromkeys(requested))),
    )
    all_names = tuple(output.name for output in metadata.outputs)
    return ParsedRequest(
        request, OutputSelection(requested or all_names, is_explicit=bool(requested))
    )


# ---- for backends


def backend_outputs(request: InferRequest, model: ModelMetadata) -> list[str]:
    """Return the names of the outputs to request. The list is empty if the backend chooses the
    outputs."""
    model_names = [tensor.name for tensor in model.outputs]
    if request.outputs:
        positions = {name: position for position, name in enumerate(model_names)}
        requested_names = [output.name for output in request.outputs]
        return sorted(requested_names, key=lambda name: positions.get(name, len(positions)))
    return [] if _is_graph(model) else model_names


def _is_graph(model: ModelMetadata) -> bool:
    input_names = {tensor.name for tensor in model.inputs}
    return any(tensor.name in input_names for tensor in model.outputs)


def write_request(request: InferRequest, model: ModelMetadata) -> list[Buffer]:
    """Write ``request`` as a Request table. Raises UNSUPPORTED, BAD_REQUEST and TOO_LARGE."""
    model_names = {tensor.name for tensor in model.outputs}
    unknown = [output.name for output in request.outputs if output.name not in model_names]
    if unknown and model_names and not _is_graph(model):  # Rule 3
        raise bad_request(f"model '{request.model}' has no output '{unknown[0]}'")
    return flatbuffer_writer.write_request(
        write_config(request.parameters), request.inputs, backend_outputs(request, model)
    )
