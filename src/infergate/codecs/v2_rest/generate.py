"""Triton's generate extension: an inference as one flat JSON object, and its answers likewise.

*Rule 1.* A member that the model has an input of is that tensor, a scalar or a list; ``parameters``
holds more of both; ``id`` is the request's; any other member is a parameter.
*Rule 2.* The shape is the model's. All its dimensions are as they are told but the last free one,
which follows from the number of elements, and the other free ones, which are 1.
*Rule 3.* An answer has its members in the order of their names; a tensor of one element is that.
*Rule 4.* Requests name no outputs and ask for no form: answers are JSON, never compressed.

Source: Triton's ``extension_generate.md`` and ``http_server.cc``; what a real one answers
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
    """Marks (``Parsed.reply``) that the answer is told by Rule 3."""


def read_generate(
    wire: HttpRequest, model: str, version: str, limits: Limits, *, streamed: bool
) -> Unfinished[Parsed]:
    """The inference in ``wire``, which the model's metadata makes whole. Raises what is wrong with
    the body as such; ``finish`` what is wrong with the JSON."""
    body = bytes(decoded(wire.headers, wire.body, limits))
    if not body:
        raise bad_request("the body is empty")
    check_json_size(len(body), limits)
    finish = partial(_finish, model, version, body, streamed=streamed)
    return Unfinished(model, version, finish, len(body))


def _finish(
    model: str, version: str, body: Buffer, metadata: ModelMetadata, *, streamed: bool
) -> Parsed:
    inputs = {each.name: each for each in metadata.inputs}
    told = _Told(inputs)
    # another process is given long bytes as a view
    top = every(read(body if isinstance(body, bytes) else bytes(body)), "the body")
    if NESTED in inputs:
        raise bad_request(f"'{NESTED}' is both an input of the model and the request's parameters")
    nested = every(top.pop(NESTED), NESTED) if NESTED in top else {}
    identity = ""
    if ID in top and ID not in inputs:
        identity = string(top.pop(ID), ID)
        check_length(len(identity), ID)
    for path, members in (("", top), (f"{NESTED}.", nested)):
        for name, node in members.items():
            told.add(name, node, path)
    sequence_id(told.parameters)
    request = InferRequest(model, version, identity, told.parameters, tuple(told.tensors.values()))
    return Parsed(request, Flat(), streamed, "" if streamed else ONE_ANSWER)


class _Told:
    """What the members of a request tell."""

    def __init__(self, inputs: dict[str, TensorMetadata]) -> None:
        self._inputs: Final = inputs
        self._strings = 0
        self._letters = 0
        self.tensors: Final[dict[str, Tensor]] = {}
        self.parameters: Final[dict[str, Any]] = {}

    def add(self, name: str, node: Node, path: str) -> None:
        """The member ``name``. Raises BAD_REQUEST, TOO_LARGE."""
        if name in self.tensors or name in self.parameters:
            raise bad_request(f"'{shown(name)}' is given twice, also as {path}{shown(name)}")
        described = self._inputs.get(name)
        if described is not None:
            self.tensors[name] = self._tensor(described, node)
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
        listed = node if is_array(node) else [node]
        shape = spread(name, len(listed), described.shape)
        if datatype is Datatype.BYTES:
            self._strings = add_bytes_elements(name, shape, self._strings)
        return Tensor(name, datatype, shape, read_elements(name, datatype, shape, listed, REQUEST))


_SCALARS: Final = frozenset({int, float, bool})


def known(described: TensorMetadata) -> Datatype:
    """The datatype that metadata tells. Raises UNSUPPORTED."""
    datatype = BY_NAME.get(described.datatype)
    if datatype is None:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"tensor '{described.name}': datatype '{described.datatype}' is not known",
        )
    return datatype


def spread(name: str, count: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Rule 2. Raises BAD_REQUEST where ``count`` elements have no such shape."""
    left = count
    for dimension in dimensions:
        if dimension >= 0:
            if not dimension or left % dimension:
                raise _shapeless(name, count, dimensions)
            left //= dimension
    shape = list(dimensions)
    for index in reversed(range(len(shape))):
        if shape[index] < 0:
            shape[index] = left
            left = 1
    if left != 1:
        raise _shapeless(name, count, dimensions)
    return tuple(shape)


def _shapeless(name: str, count: int, dimensions: Sequence[int]) -> GatewayError:
    return bad_request(
        f"The schema can not convert input '{name}' to tensor with proper shape: it has {count} "
        f"elements, the model's shape is {list(dimensions)}"
    )


# ---- write ------------------------------------------------------------------------------------


def write_generated(answer: InferResponse, spelling: tuple[bytes, bytes, bytes]) -> bytes:
    """Rule 3. Raises UNSUPPORTED for what cannot be told so."""
    told: dict[str, Any] = {"model_name": answer.model}
    if answer.id:
        told[ID] = answer.id
    if answer.version:
        told["model_version"] = answer.version
    for name, value in write_parameters(answer.parameters, "response").items():
        told.setdefault(name, value)
    for tensor in answer.outputs:
        told.setdefault(tensor.name, _written(tensor, spelling))
    return dump(dict(sorted(told.items())))


def _written(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> Any:
    if tensor.datatype is Datatype.BYTES:
        strings = write_strings(tensor)
        if strings is None:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"output '{tensor.name}': BYTES that are not UTF-8 cannot be told by generate",
            )
        return strings[0] if len(strings) == 1 else strings
    numbers = write_numbers(tensor, spelling)
    if len(tensor.data) != tensor.datatype.itemsize:
        return numbers
    if isinstance(numbers, orjson.Fragment):
        return orjson.Fragment(dump(numbers)[1:-1])
    return numbers[0]
