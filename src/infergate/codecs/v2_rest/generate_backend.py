"""A decoupled model of a Triton over REST: asked and answered by ``generate_stream``, which knows
neither shapes nor datatypes.

*Rule 1.* What Triton would make something else of is refused before it is sent: tensors whose shape
does not follow from the number of their elements, what stands for a form or a sequence.
*Rule 2.* Answers are read by the model's metadata, which alone tells shapes and datatypes. An
output whose shape does not follow from it is refused before the request is sent.

Source: as for ``generate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from infergate.codecs.v2_rest.document import Node, every, is_array, read_tolerantly, string
from infergate.codecs.v2_rest.elements import (
    ANSWER,
    NON_FINITE,
    read_elements,
    write_numbers,
    write_strings,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE, LONGEST
from infergate.codecs.v2_rest.generate import ID, NESTED, known, spread
from infergate.codecs.v2_rest.infer_response import blamed
from infergate.codecs.v2_rest.paths import model_path
from infergate.codecs.v2_rest.tensors import check_json_size, dump, write_parameters
from infergate.core import events
from infergate.core.classification import PARAMETER
from infergate.core.datatypes import NUMPY, Datatype
from infergate.core.errors import GatewayError, Kind, Origin, bad_request, garbage
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, add_bytes_elements
from infergate.core.wire import HttpRequest, HttpResponse, joined

_MEANT: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)
"""Parameters that mean something with ``infer``; ``generate_stream`` hands them to the model."""
_FLOATS: Final = frozenset({Datatype.FP32, Datatype.FP64})
_NOT_IN_JSON: Final = frozenset({Datatype.FP16, Datatype.BF16})
"""Triton refuses them."""
_NAMES: Final = ("model_name", "model_version", ID)
EVENTS: Final = {"content-type": JSON_TYPE, "accept": events.TYPE}

# ---- ask --------------------------------------------------------------------------------------


def write_generate(operation: InferRequest, model: ModelMetadata) -> HttpRequest:
    """The request. Raises UNSUPPORTED naming what cannot be told so."""
    inputs = {each.name: each for each in model.inputs}
    told: dict[str, Any] = {ID: operation.id} if operation.id else {}
    for tensor in operation.inputs:
        told[tensor.name] = _written(tensor, inputs.get(tensor.name))
    parameters = write_parameters(operation.parameters, "request")
    for name, value in parameters.items():
        if name in inputs or (name in _MEANT and value):
            raise _untold(f"parameter '{name}'")
    if parameters:
        told[NESTED] = parameters
    for output in operation.outputs:
        if output.place is not None or PARAMETER in output.parameters:
            raise _untold(f"the form that output '{output.name}' is wanted in")
    for described in model.outputs:
        if _free(_dimensions(described, operation, model)) > 1:
            raise _untold(f"output '{described.name}' of shape {list(described.shape)}")
    path = model_path(operation.model, operation.version, "/generate_stream")
    return HttpRequest("POST", path, "", EVENTS, [dump(told)])


def _written(tensor: Tensor, described: TensorMetadata | None) -> Any:
    what = f"input '{tensor.name}'"
    if described is None or tensor.name in (ID, NESTED):
        raise _untold(f"{what}, of which the model's metadata knows nothing,")
    if tensor.place is not None or tensor.datatype in _NOT_IN_JSON:
        raise _untold(f"{what} of datatype {tensor.datatype.value}")
    if tensor.datatype is Datatype.BYTES:
        told: Any = write_strings(tensor)
        if told is None:
            raise _untold(f"{what}, whose BYTES are not UTF-8,")
        count = len(told)
    else:
        count = len(tensor.data) // tensor.datatype.itemsize
        if tensor.datatype in _FLOATS:
            values = np.frombuffer(tensor.data, NUMPY[tensor.datatype])
            if not np.isfinite(values).all():
                raise _untold(f"{what}, which holds what is no number,")
        told = write_numbers(tensor, NON_FINITE["literal"])
    try:
        same = spread(tensor.name, count, described.shape) == tensor.shape
    except GatewayError:  # it is not the model's, whose server has its own words for that
        same = False
    if not same:
        raise _untold(
            f"{what} of shape {list(tensor.shape)}, where the model's is {list(described.shape)},"
        )
    return told


def _untold(what: str) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"{what} cannot be told to a decoupled model over REST (generate_stream); over gRPC it can",
    )


def _dimensions(
    described: TensorMetadata, operation: InferRequest, model: ModelMetadata
) -> Sequence[int]:
    """The shape of an output as far as it is known: its batch is that of the inputs."""
    shape = described.shape
    first = next((tensor.shape for tensor in operation.inputs), ())
    if model.max_batch_size and shape and first:
        return (first[0], *shape[1:])
    return shape


def _free(dimensions: Sequence[int]) -> int:
    return sum(dimension < 0 for dimension in dimensions)


# ---- read -------------------------------------------------------------------------------------


def read_generated(
    wire: HttpResponse, operation: InferRequest, limits: Limits, model: ModelMetadata
) -> InferResponse:
    """One answer. Raises the backend's error, or BACKEND_GARBAGE."""
    body = bytes(joined(wire.body))
    try:
        check_json_size(len(body), limits)
        top = every(read_tolerantly(body, limits), "the answer")
        if "error" in top and "model_name" not in top:
            raise _told_error(top["error"], wire.status)
        names = [string(top.pop(name, ""), name) for name in _NAMES]
        outputs = _outputs(top, operation, model)
        parameters = {name: _plain(name, node) for name, node in top.items()}
    except GatewayError as error:
        if error.origin is Origin.BACKEND:
            raise
        raise blamed(error) from None
    told, version, identity = names
    return InferResponse(told or operation.model, version, identity, parameters, outputs)


def _told_error(said: Node, status: int) -> GatewayError:
    """Triton tells what fails in a model, whatever it is, under 400 or, where an answer came
    before it, under 200."""
    text = said if type(said) is str and said else "the backend answered an error without a text"
    detail = f"in a stream of events under HTTP {status}"
    return GatewayError(Kind.BACKEND_ERROR, text[:LONGEST], origin=Origin.BACKEND, detail=detail)


def _outputs(
    top: dict[str, Node], operation: InferRequest, model: ModelMetadata
) -> tuple[Tensor, ...]:
    """The outputs that are wanted, taken out of ``top`` with those that are not."""
    found: dict[str, Tensor] = {}
    strings = 0
    for described in model.outputs:
        if described.name not in top:
            continue
        node = top.pop(described.name)
        name, datatype = described.name, known(described)
        listed = node if is_array(node) else [node]
        shape = spread(name, len(listed), _dimensions(described, operation, model))
        if datatype is Datatype.BYTES:
            strings = add_bytes_elements(name, shape, strings)
        data = read_elements(name, datatype, shape, listed, ANSWER)
        found[name] = Tensor(name, datatype, shape, data)
    if not operation.outputs:
        return tuple(found.values())
    for output in operation.outputs:
        if output.name not in found:
            raise garbage(f"the backend's answer lacks output '{output.name}'")
    return tuple(found[output.name] for output in operation.outputs)


def _plain(name: str, node: Node) -> Any:
    if type(node) is str:
        return string(node, name)
    if type(node) not in (int, float, bool):
        raise bad_request(f"'{name}' is neither an output of the model nor a parameter")
    return node
