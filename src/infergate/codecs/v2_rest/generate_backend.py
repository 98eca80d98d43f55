"""Writes requests for decoupled models to Triton's ``generate_stream``, and reads the responses.

The messages have neither shapes nor datatypes. For responses, the model's metadata supplies shapes
and datatypes. The gateway rejects requests that Triton would misinterpret, and requests to models
that have outputs with several variable dimensions. The docstring of
``generate_frontend`` names the sources for this API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from infergate.codecs.json_tensors.json_data import (
    NON_FINITE_SPELLINGS,
    RESPONSE_RULES,
    read_data,
    write_numbers,
    write_strings,
)
from infergate.codecs.json_tensors.json_document import (
    Node,
    check_json_size,
    is_array,
    parse_backend_json,
    read_all_members,
    read_string,
)
from infergate.codecs.json_tensors.row_reader import known_datatype
from infergate.codecs.v2_rest.errors import JSON_TYPE, reported_error
from infergate.codecs.v2_rest.generate_frontend import ID, PARAMETERS, resolve_shape
from infergate.codecs.v2_rest.infer_response import unusable_response
from infergate.codecs.v2_rest.paths import model_path
from infergate.codecs.v2_rest.tensors import encode_json, write_parameters
from infergate.core import server_sent_events
from infergate.core.classification import CLASSIFICATION
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind, Origin, backend_garbage, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, add_bytes_elements
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_INFER_ONLY_PARAMETERS: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)
"""Parameters that have a special meaning in ``infer``. ``generate_stream`` would pass them to the
model."""
_FLOATS: Final = frozenset({Datatype.FP32, Datatype.FP64})
_BINARY_ONLY_DATATYPES: Final = frozenset({Datatype.FP16, Datatype.BF16})
"""Datatypes that Triton rejects in JSON."""
_RESPONSE_FIELDS: Final = ("model_name", "model_version", ID)
EVENT_STREAM_HEADERS: Final = {
    "content-type": JSON_TYPE,
    "accept": server_sent_events.EVENT_STREAM_TYPE,
}

# ---- requests -----------------------------------------------------------------------------------


def write_generate_request(operation: InferRequest, model: ModelMetadata) -> HttpRequest:
    """Write the request. Raises UNSUPPORTED for an operation that ``generate_stream`` cannot
    express."""
    inputs = {tensor_metadata.name: tensor_metadata for tensor_metadata in model.inputs}
    members: dict[str, Any] = {ID: operation.id} if operation.id else {}
    for tensor in operation.inputs:
        members[tensor.name] = _input_value(tensor, inputs.get(tensor.name))
    parameters = write_parameters(operation.parameters, "request")
    for name, value in parameters.items():
        if name in inputs or (name in _INFER_ONLY_PARAMETERS and value):
            raise _unsupported(f"parameter '{name}'")
    if parameters:
        members[PARAMETERS] = parameters
    for output in operation.outputs:
        if output.shared_memory is not None or CLASSIFICATION in output.parameters:
            raise _unsupported(
                f"a request for output '{output.name}' in shared memory or as classes"
            )
    for output_metadata in model.outputs:
        dimensions = _output_dimensions(output_metadata, operation, model)
        if sum(dimension < 0 for dimension in dimensions) > 1:
            raise _unsupported(
                f"a request for output '{output_metadata.name}', whose shape "
                f"{list(output_metadata.shape)} has several variable dimensions,"
            )
    path = model_path(operation.model, operation.version, "/generate_stream")
    return HttpRequest("POST", path, "", EVENT_STREAM_HEADERS, [encode_json(members)])


def _input_value(tensor: Tensor, input_metadata: TensorMetadata | None) -> Any:
    subject = f"input '{tensor.name}'"
    if tensor.name in (ID, PARAMETERS):
        raise _unsupported(f"{subject}, whose name is reserved,")
    if input_metadata is None:
        raise _unsupported(f"{subject}, which is not in the model's metadata,")
    data, count = _write_elements(tensor, subject)
    try:
        has_model_shape = resolve_shape(tensor.name, count, input_metadata.shape) == tensor.shape
    except GatewayError:  # the number of elements does not match the model's shape
        has_model_shape = False
    if not has_model_shape:
        raise _unsupported(
            f"{subject} of shape {list(tensor.shape)}, not {list(input_metadata.shape)} as in the "
            "model,"
        )
    return data


def _write_elements(tensor: Tensor, subject: str) -> tuple[Any, int]:
    """Return the elements as JSON, and their number."""
    if tensor.shared_memory is not None:
        raise _unsupported(f"{subject} in shared memory")
    if tensor.datatype in _BINARY_ONLY_DATATYPES:
        raise _unsupported(f"{subject} of datatype {tensor.datatype.value}")
    if tensor.datatype is Datatype.BYTES:
        texts = write_strings(tensor)
        if texts is None:
            raise _unsupported(f"{subject}, whose BYTES are not UTF-8,")
        return texts, len(texts)
    if tensor.datatype in _FLOATS:
        values = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])
        if not np.isfinite(values).all():
            raise _unsupported(f"{subject}, which holds NaN or infinity,")
    data = write_numbers(tensor, NON_FINITE_SPELLINGS["literal"])
    return data, len(tensor.data) // tensor.datatype.itemsize


def _unsupported(subject: str) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"{subject} cannot be sent to a decoupled model over REST (generate_stream); use gRPC",
    )


def _output_dimensions(
    output: TensorMetadata, operation: InferRequest, model: ModelMetadata
) -> Sequence[int]:
    """Return the dimensions of an output. The batch dimension, if the model has one, is the batch
    dimension of the inputs."""
    shape = output.shape
    first = next((tensor.shape for tensor in operation.inputs), ())
    if model.max_batch_size and shape and first:
        return (first[0], *shape[1:])
    return shape


# ---- responses ----------------------------------------------------------------------------------


def read_generate_response(
    wire: HttpResponse, operation: InferRequest, limits: Limits, model: ModelMetadata
) -> InferResponse:
    """Parse one response. Raises the backend's error, BACKEND_GARBAGE and NeedsOffloadError."""
    body = bytes(join_parts(wire.body))
    try:
        check_json_size(len(body), limits.json)
        members = read_all_members(parse_backend_json(body, limits), "the response")
        if "error" in members and "model_name" not in members:
            # Triton sends an error with status 400 or, after the first response, with status 200.
            detail = f"in a stream of events with HTTP status {wire.status}"
            raise reported_error(members["error"], detail)
        names = [read_string(members.pop(name, ""), name) for name in _RESPONSE_FIELDS]
        outputs = _read_outputs(members, operation, model)
        parameters = {name: _read_parameter(name, node) for name, node in members.items()}
    except GatewayError as error:
        if error.origin is Origin.BACKEND:
            raise
        raise unusable_response(error) from None
    model_name, version, response_id = names
    return InferResponse(model_name or operation.model, version, response_id, parameters, outputs)


def _read_outputs(
    members: dict[str, Node], operation: InferRequest, model: ModelMetadata
) -> tuple[Tensor, ...]:
    """Return the requested outputs, and remove all outputs of the model from ``members``."""
    tensors: dict[str, Tensor] = {}
    bytes_elements = 0
    for output_metadata in model.outputs:
        if output_metadata.name not in members:
            continue
        node = members.pop(output_metadata.name)
        name, datatype = output_metadata.name, known_datatype(output_metadata)
        elements = node if is_array(node) else [node]
        shape = resolve_shape(
            name, len(elements), _output_dimensions(output_metadata, operation, model)
        )
        if datatype is Datatype.BYTES:
            bytes_elements = add_bytes_elements(name, shape, bytes_elements)
        data = read_data(name, datatype, shape, elements, RESPONSE_RULES)
        tensors[name] = Tensor(name, datatype, shape, data)
    if not operation.outputs:
        return tuple(tensors.values())
    for output in operation.outputs:
        if output.name not in tensors:
            raise backend_garbage(f"the backend's response has no output '{output.name}'")
    return tuple(tensors[output.name] for output in operation.outputs)


def _read_parameter(name: str, node: Node) -> Any:
    if type(node) is str:
        return read_string(node, name)
    if type(node) not in (int, float, bool):
        raise bad_request(f"'{name}' is neither an output of the model nor a parameter")
    return node
