"""Typed contents cut out of a message, and the rest weighed, before protobuf sees it.

*Strategy.* The protobuf runtime makes up to twenty times its size of a message: two bytes of an
empty string or parameter, or one of a dimension, become an object or an integer. So descriptions
are walked first: their typed contents are cut out, as raw contents are, and the rest is counted.

*Rule 1.* Fields are counted over the whole message, at any depth that can hold many.
*Rule 2.* What is left, names and shapes and parameters, has no more than ``MOST_HEAD`` bytes: what
no count covers (a parameter that holds one thing many times) costs by its size.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.protos.scan import (
    DELIMITED,
    Allowance,
    Malformed,
    allowance,
    counted,
    fields,
    prefix,
)
from infergate.codecs.v2_grpc.contents import Typed
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB, MIB, Limits, check_loop
from infergate.core.tensor import Buffer

MOST_FIELDS: Final = 24 * KIB
"""Fields of one message that are ever looked at: at most 50 ms of the interpreter's time."""
MOST_HEAD: Final = 4 * MIB
"""A message without its tensors' data. Parsing it holds the interpreter about 6 ms a MiB."""

_HEAD_ON_LOOP: Final = MIB
_TENSORS: Final = 5
"""ModelInferRequest.inputs, ModelInferResponse.outputs"""
_REQUESTED: Final = 6
"""ModelInferRequest.outputs"""
_SHAPE: Final = 3
_CONTENTS: Final = 5
_DIMENSION_BYTES: Final = 10
"""The longest varint."""


def most_fields(limits: Limits) -> int:
    """How many top-level fields an honest message within ``limits`` may have: for each tensor
    its description, the request for an output, its raw entry and a parameter, and a few names."""
    return min(4 * limits.tensors + 16, MOST_FIELDS)


def cut_contents(head: Buffer, limits: Limits) -> tuple[Buffer, list[Typed]]:
    """``head`` without typed contents, and those of each description in it; not copied.

    Raises Malformed, and TOO_LARGE by Rule 2.
    """
    spent = allowance(MOST_FIELDS, limits)
    view = memoryview(head)
    runs: list[Buffer] = []
    typed: list[Typed] = []
    kept = 0
    for field in fields(head, most_fields(limits)):
        if field.wire_type != DELIMITED:
            continue
        if field.number == _TENSORS:
            contents, rest = _part(len(typed), view[field.value : field.end], limits, spent)
            typed.append(Typed(contents, spent))
            if contents:
                runs += (
                    view[kept : field.start],
                    prefix(_TENSORS, sum(map(len, rest))),
                    *rest,
                )
                kept = field.end
        elif field.number == _REQUESTED:
            for _ in counted(view[field.value : field.end], spent):
                pass
    size = len(head) - sum(len(piece) for each in typed for piece in each.pieces)
    if size > MOST_HEAD:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"names, shapes and parameters take {size} bytes, the limit is {MOST_HEAD}",
        )
    check_loop(limits, size, _HEAD_ON_LOOP)
    if not runs:
        return head, typed
    return b"".join((*runs, view[kept:])), typed


def _part(
    index: int, description: memoryview, limits: Limits, spent: Allowance
) -> tuple[list[memoryview], list[memoryview]]:
    """The pieces of the typed contents of tensor ``index``, and what is left of it."""
    contents: list[memoryview] = []
    rest: list[memoryview] = []
    kept = shape = 0
    for field in counted(description, spent):
        if field.wire_type != DELIMITED:
            continue
        if field.number == _CONTENTS:
            contents.append(description[field.value : field.end])
            rest.append(description[kept : field.start])
            kept = field.end
        elif field.number == _SHAPE:
            shape += field.end - field.value
            if shape > _DIMENSION_BYTES * limits.rank:
                raise Malformed(
                    f"the shape of tensor {index} has over {limits.rank} dimensions, the limit",
                    limit="rank",
                )
    rest.append(description[kept:])
    return contents, rest
