"""Sequences: inferences between which a server keeps state.

The names are Triton's: the parameter ``sequence_id`` tells them apart within a model, an integer or
a text; 0 and an empty text are none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from infergate.core.messages import InferRequest
from infergate.core.tensor import Parameters

PARAMETER: Final = "sequence_id"

SequenceId = int | str


class SequenceName(NamedTuple):
    """One sequence of a model, whatever its version."""

    model: str
    id: SequenceId


def sequence_id(parameters: Parameters) -> SequenceId | None:
    """The sequence that an inference with ``parameters`` belongs to. A value of any other type is
    none: what a server makes of it is its own."""
    value = parameters.get(PARAMETER)
    return value if value and type(value) in (int, str) else None


def sequence_of(request: InferRequest) -> SequenceName | None:
    """The sequence that ``request`` belongs to."""
    number = sequence_id(request.parameters)
    return None if number is None else SequenceName(request.model, number)
