"""Tensors of a ModelInferRequest or ModelInferResponse ⇄ canonical tensors.

*Strategy.* Both messages spell tensors alike: a list of descriptions in the head, and either raw
entries in the same order or typed contents inside the descriptions. What is read here is checked
(Rule 1 of ``core.tensor``), whoever sent it; the error's kind is put right by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.codecs.v2_grpc.contents import FORMS, read_contents, write_contents
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameters
from infergate.codecs.v2_grpc.scan import prefix
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer, Tensor, check_data, check_shape

_SHOWN: Final = 80
MOST_FIELDS: Final = 65536
"""Top-level fields that are ever looked at: about 50 ms of the interpreter's time."""


def most_fields(limits: Limits) -> int:
    """How many top-level fields an honest message within ``limits`` may have: for each tensor
    its description, the request for an output, its raw entry and a parameter, and a few names."""
    return min(4 * limits.tensors + 16, MOST_FIELDS)


def read_datatype(name: str, spelled: str) -> Datatype:
    """The datatype spelled so. Raises BAD_REQUEST."""
    datatype = BY_NAME.get(spelled)
    if datatype is None:
        raise bad_request(f"tensor '{name}': unknown datatype {spelled!r}")
    return datatype


def read_tensor(message: Any, datatype: Datatype, data: Buffer | None, limits: Limits) -> Tensor:
    """The tensor described by ``message`` with raw ``data``, or its typed contents if None."""
    name = message.name
    shape = check_shape(name, message.shape, limits)
    if data is None:
        data = _typed(message, datatype, shape)
    check_data(name, datatype, shape, data)
    return Tensor(name, datatype, shape, data, read_parameters(message.parameters))


def _typed(message: Any, datatype: Datatype, shape: tuple[int, ...]) -> Buffer:
    if not has_elements(message):
        if math.prod(shape):
            raise bad_request(f"tensor '{message.name}': it has neither raw nor typed contents")
        return b""
    return read_contents(message.name, datatype, message.contents)


def has_elements(message: Any) -> bool:
    """Whether typed contents hold anything. An empty ``contents`` message is as good as none."""
    return message.HasField("contents") and bool(message.contents.ListFields())


def write_description(message: Any, tensor: Tensor) -> None:
    """All of ``tensor`` but its data."""
    message.name = tensor.name
    message.datatype = tensor.datatype.value
    message.shape.extend(tensor.shape)
    if tensor.parameters:
        write_parameters(message.parameters, tensor.parameters)


def raw_parts(head: Any, number: int, tensors: Iterable[Tensor]) -> Sequence[Buffer]:
    """The message parts of ``head`` and one raw entry a tensor in field ``number``; no copy."""
    parts: list[Buffer] = [head.SerializeToString(deterministic=True)]
    for tensor in tensors:
        parts.append(prefix(number, len(tensor.data)))
        if len(tensor.data):
            parts.append(tensor.data)
    return parts


def can_be_typed(tensors: Iterable[Tensor]) -> bool:
    """Whether every tensor's datatype has a typed form."""
    return all(tensor.datatype in FORMS for tensor in tensors)


def write_typed(message: Any, tensor: Tensor) -> None:
    """Put the elements of ``tensor`` into the typed contents of ``message``."""
    if len(tensor.data):
        message.contents.MergeFrom(write_contents(tensor.datatype, tensor.data))


def explain(error: ValueError) -> str:
    """What cannot be written as protobuf: text with lone surrogates, or a number out of range."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:_SHOWN]!r} is not Unicode text"
    return str(error)
