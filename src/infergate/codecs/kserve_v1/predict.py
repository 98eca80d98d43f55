"""Reads and writes the bodies of predict requests and responses. A request has rows under
``instances`` or ``inputs``. The response has rows, or an object with the outputs by name, under
``predictions``.

*Rule 1.* A body has no datatypes. It has names of tensors only if each row is an object, or if
``predictions`` is a single object. The model's metadata supplies the missing names and datatypes.
Pass-through does not need the metadata.

*Rule 2.* JSON is parsed as strictly as in KServe: NaN, Infinity, a byte order mark and text after
the object are errors, with KServe's error texts. Integers over 64 bits become floats.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import simdjson

from infergate.codecs.encodings import check_unencoded
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS, number_array
from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    is_array,
    json_kind,
    parse_with_stdlib,
    read_nullable_members,
)
from infergate.codecs.json_tensors.outline import outline_of
from infergate.codecs.json_tensors.row_document import JsonValue, is_object, read_members
from infergate.codecs.json_tensors.row_reader import RULES, RowReader, input_types
from infergate.codecs.json_tensors.row_writer import have_rows, write_columns, write_rows
from infergate.codecs.kserve_v1.cloud_events import (
    EVENT_TYPE,
    Event,
    EventRequest,
    media_type,
    parse_as_kserve,
    read_binary_event,
    read_structured_event,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, FLOATS
from infergate.core.errors import GatewayError, Kind, as_backend_error, bad_request
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

INSTANCES: Final = "instances"
INPUTS: Final = "inputs"
PREDICTIONS: Final = "predictions"
_KEYS: Final = (INPUTS, INSTANCES)
"""The keys of the rows. If a body has both keys, KServe reads ``inputs``."""
_JSON_TYPES: Final = frozenset(
    {"", "application/json", EVENT_TYPE, "application/ld+json", "application/octet-stream"}
)
_NULL: Final = NON_FINITE_SPELLINGS["null"]
_RESPONSE_RULES: Final = replace(RULES, allows_non_finite_text=True)
"""KServe writes null for NaN and infinity."""


# ---- for clients --------------------------------------------------------------------------------


def read_payload(wire: HttpRequest, limits: Limits) -> tuple[bytes, Event | None]:
    """Return the JSON text of a request, and its event or None. Raises BAD_REQUEST, TOO_LARGE,
    UNSUPPORTED_ENCODING and NeedsOffloadError."""
    check_unencoded(wire.headers, "KServe's V1 protocol")
    text = bytes(join_parts(wire.body))
    check_json_size(len(text), limits.json)
    if isinstance(wire, EventRequest):
        return text, wire.event
    event = read_binary_event(wire.headers)
    if event is not None:
        return text, event
    if media_type(wire.headers) not in _JSON_TYPES:
        raise bad_request("unsupported payload type <class 'bytes'>")
    return read_structured_event(text, wire.headers, limits) or (text, None)


def check_body(text: bytes, limits: Limits) -> None:
    """Check everything in the request ``text`` except the values in the rows. Raises BAD_REQUEST,
    TOO_LARGE and NeedsOffloadError."""
    root = _parse_fast(text)
    if root is None:
        root = _parse_slowly(text, limits)
    _check_object(root)
    _select_rows(read_nullable_members(root, "the body", _KEYS))


def read_inputs(text: bytes, metadata: ModelMetadata, limits: Limits) -> tuple[Tensor, ...]:
    """Return the tensors in the rows of ``text``. Raises BAD_REQUEST, TOO_LARGE, UNSUPPORTED and
    NeedsOffloadError."""
    document = _parse(text, limits)
    _check_object(document.node)
    members = read_members(document, "the body", _KEYS)
    key = _select_rows({name: value.node for name, value in members.items()})
    if not len(members[key].node):
        return _empty_tensors(metadata.inputs)
    reader = RowReader(input_types(metadata.inputs), limits)
    return reader.read_instances(members[key], key)


def _select_rows(members: dict[str, Node]) -> str:
    """Return the key of the rows in ``members``. Raises BAD_REQUEST."""
    for key in _KEYS:
        if key in members:
            if not is_array(members[key]):
                raise bad_request(f'Expected "{key}" to be a list')
            return key
    raise bad_request(f"the body has neither '{INSTANCES}' nor '{INPUTS}'")


def _check_object(root: Node) -> None:
    if not is_object(root):
        raise bad_request(
            f"unsupported payload type: the body is {json_kind(root)}, but KServe expects an object"
        )


def _parse(text: bytes, limits: Limits) -> JsonValue:
    root = _parse_fast(text)
    if root is not None:
        return JsonValue(root, outline_of(text))
    return JsonValue(_parse_slowly(text, limits))


def _parse_slowly(text: bytes, limits: Limits) -> Node:
    """Raise the errors of KServe's parser. Then parse with a parser that keeps duplicates."""
    parse_as_kserve(text, limits)
    return parse_with_stdlib(text)


def _parse_fast(text: bytes) -> Any:
    """Parse with simdjson. Return None for a byte order mark and for text that simdjson rejects."""
    if text.startswith(BOM_UTF8):
        return None
    try:
        return simdjson.Parser().parse(text)
    except (ValueError, RuntimeError):
        return None


def _empty_tensors(tensors: Sequence[TensorMetadata]) -> tuple[Tensor, ...]:
    datatypes = input_types(tensors)
    return tuple(
        Tensor(each.name, datatypes[each.name], (0, *(max(d, 0) for d in each.shape[1:])), b"")
        for each in tensors
    )


def write_predictions(response: InferResponse) -> bytes:
    """Return the body of a response: rows, or an object if the outputs have no common first
    dimension. Raises TOO_LARGE."""
    outputs = response.outputs
    if have_rows(outputs):
        predictions = write_rows(outputs, spelling=_NULL)
    else:
        predictions = write_columns(outputs, is_named=True, spelling=_NULL)
    return b'{"%s":%s}' % (PREDICTIONS.encode(), predictions)


# ---- for backends -------------------------------------------------------------------------------


def write_instances(request: InferRequest, model: ModelMetadata) -> bytes:
    """Return the body of a request. Raises BAD_REQUEST if the inputs do not match ``model``,
    UNSUPPORTED for NaN, infinity or inputs without a common first dimension, and TOO_LARGE."""
    _check_inputs(request, model)
    if not have_rows(request.inputs):
        shapes = ", ".join(f"'{each.name}' {list(each.shape)}" for each in request.inputs[:8])
        raise GatewayError(
            Kind.UNSUPPORTED,
            "KServe's V1 protocol requires rows, but the inputs have no common first dimension: "
            f"{shapes}",
        )
    for tensor in request.inputs:
        if tensor.datatype in FLOATS and not np.isfinite(number_array(tensor)).all():
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"input '{tensor.name}' has NaN or infinity, which KServe's V1 protocol cannot "
                "express",
            )
    is_named = len(model.inputs) > 1
    return b'{"%s":%s}' % (INSTANCES.encode(), write_rows(request.inputs, is_named=is_named))


def _check_inputs(request: InferRequest, model: ModelMetadata) -> None:
    """Raise BAD_REQUEST if the inputs contradict the names, datatypes and ranks that ``model``
    declares. Rows have no datatypes and often no names, so the server cannot check them."""
    declared = {tensor.name: tensor for tensor in model.inputs}
    names = {tensor.name for tensor in request.inputs}
    if declared and names != declared.keys():
        raise bad_request(
            f"model '{request.model}' has the inputs {abbreviated(sorted(declared))}; "
            f"the request has {abbreviated(sorted(names))}"
        )
    for tensor in request.inputs if declared else ():
        expected = declared[tensor.name]
        if tensor.datatype is not DATATYPES_BY_NAME.get(expected.datatype):
            raise bad_request(
                f"input '{tensor.name}' must have the datatype {expected.datatype}; "
                f"the request has {tensor.datatype.value}"
            )
        if expected.shape and len(tensor.shape) != len(expected.shape):
            raise bad_request(
                f"input '{tensor.name}' must have {len(expected.shape)} dimensions; "
                f"the request has {len(tensor.shape)}"
            )


def read_predictions(
    wire: HttpResponse, request: InferRequest, model: ModelMetadata, limits: Limits
) -> InferResponse:
    """Return the outputs in a server's response. Raises UNSUPPORTED for a model without declared
    outputs, BACKEND_GARBAGE, TOO_LARGE and NeedsOffloadError."""
    if not model.outputs:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"the metadata of model '{model.name}' has no outputs; declare them under "
            "models.<name>.outputs in the gateway's configuration",
        )
    try:
        outputs = _read_outputs(bytes(join_parts(wire.body)), model, limits)
        by_name = {tensor.name: tensor for tensor in outputs}
        for output in request.outputs:
            if output.name not in by_name:
                raise bad_request(f"it has no output '{output.name}'")
    except GatewayError as error:
        raise as_backend_error(error) from None
    if request.outputs:
        outputs = tuple(by_name[output.name] for output in request.outputs)
    return InferResponse(request.model, request.version, request.id, outputs=outputs)


def _read_outputs(text: bytes, model: ModelMetadata, limits: Limits) -> tuple[Tensor, ...]:
    check_json_size(len(text), limits.json)
    check_loop_cost(limits, len(text), limits.json_inline)
    members = read_members(_parse(text, limits), "the body", (PREDICTIONS,))
    if PREDICTIONS not in members:
        raise bad_request(f"it has no '{PREDICTIONS}'")
    reader = RowReader(input_types(model.outputs), limits, _RESPONSE_RULES)
    predictions = members[PREDICTIONS]
    if is_object(predictions.node):
        return reader.read_inputs(predictions, PREDICTIONS)
    if is_array(predictions.node) and not len(predictions.node):
        return _empty_tensors(model.outputs)
    return reader.read_instances(predictions, PREDICTIONS)
