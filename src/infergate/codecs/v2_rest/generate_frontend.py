"""Serves Triton's generate extension, in which requests and responses are flat JSON objects.

*Rule 1.* A member with the name of a model input holds that tensor, as a scalar or a list. The
member ``parameters`` is an object that may hold further inputs and parameters. The member ``id`` is
the request's id, unless the model has an input of that name. Any other member is a parameter.
*Rule 2.* A tensor has the shape in the model's metadata. The last variable dimension is set to
match the number of elements; all other variable dimensions are 1.
*Rule 3.* The members of a response are in alphabetical order. A tensor of one element is written as
a scalar.
*Rule 4.* Requests name no outputs and select no format. Responses are JSON and never compressed.

The sources are Triton's ``extension_generate.md`` and ``http_server.cc``, and the behavior of a
real server (docs/fidelity-v2.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import orjson

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.encodings import decode_body
from infergate.codecs.json_tensors.json_data import (
    REQUEST_RULES,
    read_data,
    write_numbers,
    write_strings,
)
from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    check_text_length,
    is_array,
    json_kind,
    parse_json,
    read_all_members,
    read_string,
)
from infergate.codecs.json_tensors.row_reader import known_datatype
from infergate.codecs.v2_rest.tensors import encode_json, write_parameters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.sequences import sequence_id
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements
from infergate.core.wire import HttpRequest

SINGLE_RESPONSE_ERROR: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
PARAMETERS: Final = "parameters"
ID: Final = "id"


class GenerateFormat:
    """A marker in ``ParsedRequest.response_options``: Rule 3 defines the form of the response."""


def read_generate_request(
    wire: HttpRequest, model: str, version: str, limits: Limits, *, wants_stream: bool
) -> PartialInferRequest[ParsedRequest]:
    """Read a request. The result becomes a complete inference when the model's metadata is known.
    This function raises errors about the body's encoding and size, and the result's ``complete``
    raises errors about the JSON."""
    body = bytes(decode_body(wire.headers, wire.body, limits))
    if not body:
        raise bad_request("the body is empty")
    check_json_size(len(body), limits.json)
    complete = partial(_complete, model, version, body, wants_stream=wants_stream)
    return PartialInferRequest(model, version, complete, len(body))


def _complete(
    model: str, version: str, body: Buffer, metadata: ModelMetadata, *, wants_stream: bool
) -> ParsedRequest:
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    reader = _MemberReader(inputs)
    # A helper process receives a long body as a memoryview.
    members = read_all_members(
        parse_json(body if isinstance(body, bytes) else bytes(body)), "the body"
    )
    if PARAMETERS in inputs:
        raise bad_request(
            f"the model has an input named '{PARAMETERS}', which the generate extension reserves "
            "for the request's parameters; send a V2 inference request instead"
        )
    nested_members = (
        read_all_members(members.pop(PARAMETERS), PARAMETERS) if PARAMETERS in members else {}
    )
    request_id = ""
    if ID in members and ID not in inputs:
        request_id = read_string(members.pop(ID), ID)
        check_text_length(len(request_id), ID)
    for path, group in (("", members), (f"{PARAMETERS}.", nested_members)):
        for name, node in group.items():
            reader.add(name, node, path)
    sequence_id(reader.parameters)
    request = InferRequest(
        model, version, request_id, reader.parameters, tuple(reader.tensors.values())
    )
    return ParsedRequest(
        request, GenerateFormat(), wants_stream, "" if wants_stream else SINGLE_RESPONSE_ERROR
    )


class _MemberReader:
    """Reads the members of a request as tensors and parameters."""

    def __init__(self, inputs: dict[str, TensorMetadata]) -> None:
        self._inputs: Final = inputs
        self._bytes_elements = 0
        self._text_characters = 0
        self.tensors: Final[dict[str, Tensor]] = {}
        self.parameters: Final[dict[str, Any]] = {}

    def add(self, name: str, node: Node, path: str) -> None:
        """Read the member ``name``. Raises BAD_REQUEST and TOO_LARGE."""
        if name in self.tensors or name in self.parameters:
            raise bad_request(
                f"'{abbreviated(name)}' is given twice, also as {path}{abbreviated(name)}"
            )
        input_metadata = self._inputs.get(name)
        if input_metadata is not None:
            self.tensors[name] = self._tensor(input_metadata, node)
            return
        if type(node) is str:
            node = read_string(node, f"{path}{abbreviated(name)}")
            self._text_characters += len(node)
        elif type(node) not in _SCALARS or (type(node) is float and math.isinf(node)):
            raise bad_request(
                f"parameter '{path}{abbreviated(name)}' must be a string, a finite number or a "
                f"boolean, not {json_kind(node)}; the model has no input of that name"
            )
        self._text_characters += len(name)
        check_text_length(self._text_characters, f"{path}{abbreviated(name)}")
        self.parameters[read_string(name, "a parameter's name")] = node

    def _tensor(self, input_metadata: TensorMetadata, node: Node) -> Tensor:
        name = input_metadata.name
        datatype = known_datatype(input_metadata)
        elements = node if is_array(node) else [node]
        shape = resolve_shape(name, len(elements), input_metadata.shape)
        if datatype is Datatype.BYTES:
            self._bytes_elements = add_bytes_elements(name, shape, self._bytes_elements)
        return Tensor(
            name, datatype, shape, read_data(name, datatype, shape, elements, REQUEST_RULES)
        )


_SCALARS: Final = frozenset({int, float, bool})


def resolve_shape(name: str, count: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a tensor with ``count`` elements (Rule 2). ``dimensions`` is the shape in
    the metadata. Raises BAD_REQUEST."""
    remaining = count
    for dimension in dimensions:
        if dimension >= 0:
            if not dimension or remaining % dimension:
                raise _shape_error(name, count, dimensions)
            remaining //= dimension
    shape = list(dimensions)
    for index in reversed(range(len(shape))):
        if shape[index] < 0:
            shape[index] = remaining
            remaining = 1
    if remaining != 1:
        raise _shape_error(name, count, dimensions)
    return tuple(shape)


def _shape_error(name: str, count: int, dimensions: Sequence[int]) -> GatewayError:
    return bad_request(
        f"The schema can not convert input '{name}' to tensor with proper shape: it has {count} "
        f"elements, but the model's shape is {list(dimensions)}"
    )


# ---- responses ----------------------------------------------------------------------------------


def write_generate_response(response: InferResponse, spelling: tuple[bytes, bytes, bytes]) -> bytes:
    """Write a response (Rule 3). ``spelling`` is the JSON of NaN, Infinity and -Infinity. Raises
    UNSUPPORTED if JSON cannot express the response."""
    members: dict[str, Any] = {"model_name": response.model}
    if response.id:
        members[ID] = response.id
    if response.version:
        members["model_version"] = response.version
    for name, value in write_parameters(response.parameters, "response").items():
        members.setdefault(name, value)
    for tensor in response.outputs:
        members.setdefault(tensor.name, _json_value(tensor, spelling))
    return encode_json(dict(sorted(members.items())))


def _json_value(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> Any:
    if tensor.datatype is Datatype.BYTES:
        strings = write_strings(tensor)
        if strings is None:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"output '{tensor.name}': BYTES that are not UTF-8 cannot be expressed in JSON",
            )
        return strings[0] if len(strings) == 1 else strings
    numbers = write_numbers(tensor, spelling)
    if len(tensor.data) != tensor.datatype.itemsize:
        return numbers
    if isinstance(numbers, orjson.Fragment):
        return orjson.Fragment(encode_json(numbers)[1:-1])
    return numbers[0]
