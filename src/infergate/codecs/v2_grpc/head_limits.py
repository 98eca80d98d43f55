"""Cuts typed contents out of a head, and checks limits before protobuf parses the head.

The protobuf runtime can allocate many times the size of a message, because an empty string takes
two bytes in the message and a dimension takes one byte. The number of fields of the complete
message is therefore limited. `MAX_HEAD_BYTES` limits other costs, such as a parameter that is
repeated many times."""

from __future__ import annotations

from typing import Final

from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    FieldBudget,
    MalformedMessageError,
    budgeted_fields,
    field_budget,
    field_prefix,
    scan_fields,
)
from infergate.codecs.v2_grpc.typed_contents import TypedContents
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB, MIB, Limits, check_loop_cost
from infergate.core.tensor import Buffer

MAX_FIELDS: Final = 24 * KIB
"""Maximum number of fields of a message. Reading this many fields takes up to 50 ms of CPU time."""
MIN_MAX_FIELDS: Final = 16
"""The result of `max_fields` for 0 tensors, which is its minimum."""
MAX_HEAD_BYTES: Final = 4 * MIB
"""Maximum size in bytes of a message without its tensors' data. Parsing takes about 6 ms per
MiB."""

_MAX_HEAD_BYTES_ON_LOOP: Final = MIB
_TENSORS: Final = 5
"""The field number of ModelInferRequest.inputs, and of ModelInferResponse.outputs."""
_REQUESTED_OUTPUTS: Final = 6
"""The field number of ModelInferRequest.outputs."""
_SHAPE: Final = 3
_CONTENTS: Final = 5
_DIMENSION_BYTES: Final = 10
"""The size in bytes of the longest varint."""


def max_fields(limits: Limits) -> int:
    """Return the maximum number of top-level fields of a valid message: a few names and, for each
    tensor, a description, a requested output, a raw entry and a parameter."""
    return min(4 * limits.tensors + MIN_MAX_FIELDS, MAX_FIELDS)


def cut_contents(head: Buffer, limits: Limits) -> tuple[Buffer, list[TypedContents]]:
    """Return `head` without typed contents, and views of the typed contents of each tensor. Raises
    MalformedMessageError, NeedsOffloadError, and TOO_LARGE for a head over `MAX_HEAD_BYTES`."""
    budget = field_budget(MAX_FIELDS, limits)
    view = memoryview(head)
    kept_parts: list[Buffer] = []
    typed: list[TypedContents] = []
    kept_from = 0
    for field in scan_fields(head, max_fields(limits)):
        if field.wire_type != DELIMITED:
            continue
        if field.number == _TENSORS:
            contents, rest = _split_description(
                len(typed), view[field.value_start : field.end], limits, budget
            )
            typed.append(TypedContents(contents, budget))
            if contents:
                kept_parts += (
                    view[kept_from : field.start],
                    field_prefix(_TENSORS, sum(map(len, rest))),
                    *rest,
                )
                kept_from = field.end
        elif field.number == _REQUESTED_OUTPUTS:
            for _ in budgeted_fields(view[field.value_start : field.end], budget):
                pass
    size = len(head) - sum(len(piece) for tensor in typed for piece in tensor.pieces)
    if size > MAX_HEAD_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"names, shapes and parameters take {size} bytes; the limit is {MAX_HEAD_BYTES}",
        )
    check_loop_cost(limits, size, _MAX_HEAD_BYTES_ON_LOOP)
    if not kept_parts:
        return head, typed
    return b"".join((*kept_parts, view[kept_from:])), typed


def _split_description(
    index: int, description: memoryview, limits: Limits, budget: FieldBudget
) -> tuple[list[memoryview], list[memoryview]]:
    """Return the typed contents in `description`, which describes tensor `index`, and the rest of
    `description`."""
    contents: list[memoryview] = []
    rest: list[memoryview] = []
    kept_from = shape = 0
    for field in budgeted_fields(description, budget):
        if field.wire_type != DELIMITED:
            continue
        if field.number == _CONTENTS:
            contents.append(description[field.value_start : field.end])
            rest.append(description[kept_from : field.start])
            kept_from = field.end
        elif field.number == _SHAPE:
            shape += field.end - field.value_start
            if shape > _DIMENSION_BYTES * limits.rank:
                raise MalformedMessageError(
                    f"the shape of tensor {index} has over {limits.rank} dimensions",
                    limit_name="rank",
                )
    rest.append(description[kept_from:])
    return contents, rest
