"""Triton's generate extension towards clients: an inference and its response as flat JSON objects.

*Rule 1.* A member with the name of a model input is that tensor, as a scalar or a list;
``parameters`` holds more members; ``id`` is the request's id; any other member is a parameter.
*Rule 2.* The shape comes from the model. The last variable dimension follows from the number of
elements; all other variable dimensions are 1.
*Rule 3.* A response has its members in alphabetical order; a tensor of one element is written as a
scalar.
*Rule 4.* Requests name no outputs and select no format: responses are JSON and never compressed.

Sources: Triton's ``extension_generate.md`` and ``http_server.cc``; the behaviour of a real server
(docs/fidelity-v2.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import orjson

from infergate.codecs.base import Parsed, Unfinished
from infergate.codecs.v2_rest.document import (
    Node,
    check_length,
    every,
    is_array,
    kind,
    read,
    shown,
    string,
)
from infergate.codecs.v2_rest.elements import REQUEST, read_elements, write_numbers, write_strings
from infergate.codecs.v2_rest.encodings import decoded
from infergate.codecs.v2_rest.tensors import (
    check_json_size,
    dump,
    write_parameters,
)
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.sequences import sequence_id
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements
from infergate.core.wire import HttpRequest

ONE_ANSWER: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
NESTED: Final = "parameters"
ID: Final = "id"


class Flat:
    """Marks a request (in ``ParsedRequest.response_options``) whose response is written by Rule
    3."""


def read_generate(
    wire: HttpRequest, model: str, version: str, limits: Limits, *, streamed: bool
) -> Unfinished[Parsed]:
    """Read a request, which the model's metadata completes. Raises errors of the body; ``complete``
    raises errors of the JSON."""
    body = bytes(decoded(wire.headers, wire.body, limits))
    if not body:
        raise bad_request("the body is empty")
    check_json_size(len(body), limits)
    complete = partial(_finish, model, version, body, streamed=streamed)
    return Unfinished(model, version, complete, len(body))


def _finish(
    model: str, version: str, body: Buffer, metadata: ModelMetadata, *, streamed: bool
) -> Parsed:
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    reader = _Told(inputs)
    # a helper process receives long bytes as a view
    members = every(read(body if isinstance(body, bytes) else bytes(body)), "the body")
    if NESTED in inputs:
        raise bad_request(f"'{NESTED}' is both an input of the model and the request's parameters")
    nested_members = every(members.pop(NESTED), NESTED) if NESTED in members else {}
    request_id = ""
    if ID in members and ID not in inputs:
        request_id = string(members.pop(ID), ID)
        check_length(len(request_id), ID)
    for path, group in (("", members), (f"{NESTED}.", nested_members)):
        for name, node in group.items():
            reader.add(name, node, path)
    sequence_id(reader.parameters)
    request = InferRequest(
        model, version, request_id, reader.parameters, tuple(reader.tensors.values())
    )
    return Parsed(request, Flat(), streamed, "" if streamed else ONE_ANSWER)


class _Told:
    """Reads the members of a request as tensors and parameters."""

    def __init__(self, inputs: dict[str, TensorMetadata]) -> None:
        self._inputs: Final = inputs
        self._strings = 0
        self._letters = 0
        self.tensors: Final[dict[str, Tensor]] = {}
        self.parameters: Final[dict[str, Any]] = {}

    def add(self, name: str, node: Node, path: str) -> None:
        """Read the member ``name``. Raises BAD_REQUEST, TOO_LARGE."""
        if name in self.tensors or name in self.parameters:
            raise bad_request(f"'{shown(name)}' is given twice, also as {path}{shown(name)}")
        input_metadata = self._inputs.get(name)
        if input_metadata is not None:
            self.tensors[name] = self._tensor(input_metadata, node)
            return
        if type(node) is str:
            node = string(node, f"{path}{shown(name)}")
            self._letters += len(node)
        elif type(node) not in _SCALARS or (type(node) is float and math.isinf(node)):
            raise bad_request(
                f"parameter '{path}{shown(name)}' must be a string, a finite number or a boolean, "
                f"not {kind(node)}; the model has no input of that name"
            )
        self._letters += len(name)
        check_length(self._letters, f"{path}{shown(name)}")
        self.parameters[string(name, "a parameter's name")] = node

    def _tensor(self, described: TensorMetadata, node: Node) -> Tensor:
        name = described.name
        datatype = known(described)
        elements = node if is_array(node) else [node]
        shape = spread(name, len(elements), described.shape)
        if datatype is Datatype.BYTES:
            self._strings = add_bytes_elements(name, shape, self._strings)
        return Tensor(
            name, datatype, shape, read_elements(name, datatype, shape, elements, REQUEST)
        )


_SCALARS: Final = frozenset({int, float, bool})


def known(described: TensorMetadata) -> Datatype:
    """Return the datatype of ``tensor``. Raises UNSUPPORTED for an unknown one."""
    datatype = BY_NAME.get(described.datatype)
    if datatype is None:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"tensor '{described.name}': unknown datatype '{described.datatype}'",
        )
    return datatype


def spread(name: str, count: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of ``count`` elements (Rule 2). Raises BAD_REQUEST if they do not fit
    ``dimensions``."""
    remaining = count
    for dimension in dimensions:
        if dimension >= 0:
            if not dimension or remaining % dimension:
                raise _shapeless(name, count, dimensions)
            remaining //= dimension
    shape = list(dimensions)
    for index in reversed(range(len(shape))):
        if shape[index] < 0:
            shape[index] = remaining
            remaining = 1
    if remaining != 1:
        raise _shapeless(name, count, dimensions)
    return tuple(shape)


def _shapeless(name: str, count: int, dimensions: Sequence[int]) -> GatewayError:
    return bad_request(
        f"The schema can not convert input '{name}' to tensor with proper shape: it has {count} "
        f"elements, the model's shape is {list(dimensions)}"
    )


# ---- responses ----------------------------------------------------------------------------------


def write_generated(answer: InferResponse, spelling: tuple[bytes, bytes, bytes]) -> bytes:
    """Write a response (Rule 3). Raises UNSUPPORTED if JSON cannot express it."""
    members: dict[str, Any] = {"model_name": answer.model}
    if answer.id:
        members[ID] = answer.id
    if answer.version:
        members["model_version"] = answer.version
    for name, value in write_parameters(answer.parameters, "response").items():
        members.setdefault(name, value)
    for tensor in answer.outputs:
        members.setdefault(tensor.name, _written(tensor, spelling))
    return dump(dict(sorted(members.items())))


def _written(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> Any:
    if tensor.datatype is Datatype.BYTES:
        strings = write_strings(tensor)
        if strings is None:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"output '{tensor.name}': BYTES that are not UTF-8 cannot be expressed by generate",
            )
        return strings[0] if len(strings) == 1 else strings
    numbers = write_numbers(tensor, spelling)
    if len(tensor.data) != tensor.datatype.itemsize:
        return numbers
    if isinstance(numbers, orjson.Fragment):
        return orjson.Fragment(dump(numbers)[1:-1])
    return numbers[0]
