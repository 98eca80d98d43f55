"""Converts between canonical tensors and the tensors of ModelInferRequest and ModelInferResponse.

Both messages encode tensors in the same way. `read_tensors` validates each tensor (Rule 1 of
`core.tensor`) and raises client errors. For messages from backends, the caller converts the errors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.codecs.protos.wire_scanner import field_prefix
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameters
from infergate.codecs.v2_grpc.typed_contents import (
    TYPED_FIELDS,
    TypedContents,
    read_contents,
    write_contents,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import MIB, Limits, check_loop_cost
from infergate.core.region_ref import RegionRef, region_parameters, without_region_parameters
from infergate.core.tensor import Buffer, Tensor, add_bytes_elements, check_data, check_shape

_MAX_SHOWN: Final = 80
_COPIED_DATATYPES: Final = frozenset({Datatype.FP32, Datatype.FP64})
_FLOAT_DISCOUNT: Final = 64
"""The cost of writing a byte of integers divided by the cost of writing a byte of floats."""
TYPED_ON_LOOP: Final = MIB
"""Maximum size in bytes of one tensor's typed contents, except floats, that the event loop reads.
Reading them takes up to 15 ms."""

DescribedTensor = tuple[Any, Datatype, Buffer | TypedContents | RegionRef]
"""A tensor's description, its datatype, and its contents or shared memory region."""


def read_datatype(name: str, datatype_name: str) -> Datatype:
    """Return the datatype with the name `datatype_name`. Raises BAD_REQUEST."""
    datatype = DATATYPES_BY_NAME.get(datatype_name)
    if datatype is None:
        raise bad_request(f"tensor '{name}': unknown datatype {datatype_name!r}")
    return datatype


def read_tensors(descriptions: Iterable[DescribedTensor], limits: Limits) -> tuple[Tensor, ...]:
    """Read and validate tensors. Raises MalformedMessageError, NeedsOffloadError, BAD_REQUEST and
    TOO_LARGE."""
    tensors: list[Tensor] = []
    elements = 0
    for message, datatype, contents in descriptions:
        name = message.name
        shape = check_shape(name, message.shape, limits)
        if datatype is Datatype.BYTES:
            elements = add_bytes_elements(name, shape, elements, limits)
        if isinstance(contents, RegionRef):
            parameters = without_region_parameters(read_parameters(message.parameters))
            tensors.append(Tensor(name, datatype, shape, b"", parameters, contents))
            continue
        if isinstance(contents, TypedContents):
            if datatype not in _COPIED_DATATYPES:
                check_loop_cost(limits, sum(map(len, contents.pieces)), TYPED_ON_LOOP)
            data = _read_typed(name, datatype, shape, contents)
        else:
            data = contents
        check_data(name, datatype, shape, data)
        tensors.append(Tensor(name, datatype, shape, data, read_parameters(message.parameters)))
    return tuple(tensors)


def _read_typed(
    name: str, datatype: Datatype, shape: tuple[int, ...], typed: TypedContents
) -> Buffer:
    expected = math.prod(shape)
    if not typed.has_elements():
        if expected:
            raise bad_request(f"tensor '{name}' has neither raw nor typed contents")
        return b""
    return read_contents(name, datatype, expected, typed)


def write_description(messages: Any, tensor: Tensor) -> None:
    """Add the description of `tensor`, without its data, to `messages`."""
    message = messages.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.shape)
    if tensor.parameters:
        write_parameters(message.parameters, tensor.parameters)
    if tensor.shared_memory is not None:
        write_parameters(message.parameters, region_parameters(tensor.shared_memory))


_cached_prefix: Final = functools.lru_cache(1024)(field_prefix)


def raw_parts(head: bytes, number: int, tensors: Iterable[Tensor]) -> Sequence[Buffer]:
    """Return `head` and one raw entry per tensor in field `number`, without copying data."""
    parts: list[Buffer] = []
    for tensor in tensors:
        head += _cached_prefix(number, len(tensor.data))
        if len(tensor.data):
            parts += (head, tensor.data)
            head = b""
    if head or not parts:
        parts.append(head)
    return parts


def can_be_typed(tensors: Iterable[Tensor]) -> bool:
    """Return whether every tensor's datatype has a typed form."""
    return all(tensor.datatype in TYPED_FIELDS for tensor in tensors)


def typed_cost(tensors: Iterable[Tensor]) -> int:
    """Return the cost of writing typed contents, as the number of JSON bytes that are written in
    the same time. An integer or string takes a few tenths of a microsecond."""
    cost = 0
    for tensor in tensors:
        cost += len(tensor.data) // (_FLOAT_DISCOUNT if tensor.datatype in _COPIED_DATATYPES else 1)
    return cost


def max_typed_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the maximum size of typed contents in bytes. A one-byte integer may take ten bytes."""
    return sum(
        len(tensor.data) * (1 if tensor.datatype in _COPIED_DATATYPES else 10) for tensor in tensors
    )


def write_typed(message: Any, tensor: Tensor) -> None:
    """Write the elements of `tensor` to the typed contents of `message`."""
    if len(tensor.data):
        message.contents.MergeFrom(write_contents(tensor.datatype, tensor.data))


def describe_error(error: ValueError) -> str:
    """Describe a value that protobuf cannot hold: a lone surrogate, or a number out of range."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:_MAX_SHOWN]!r} is not Unicode text"
    return str(error)
