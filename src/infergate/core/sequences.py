"""Sequences: inferences between which a server keeps state.

The names are Triton's: the parameter ``sequence_id`` tells them apart within a model, an integer or
a text; 0 and an empty text are none. A codec that reads parameters refuses any other value: servers
differ in what they make of it, and a gateway must not begin a sequence that nobody can continue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from infergate.core.errors import bad_request
from infergate.core.messages import InferRequest
from infergate.core.tensor import Parameters

PARAMETER: Final = "sequence_id"

SequenceId = int | str


class SequenceName(NamedTuple):
    """One sequence of a model, whatever its version."""

    model: str
    id: SequenceId


def sequence_id(parameters: Parameters) -> SequenceId | None:
    """The sequence that an inference with ``parameters`` belongs to. Raises BAD_REQUEST for a value
    that is neither an integer nor a text."""
    value = parameters.get(PARAMETER, 0)
    if type(value) not in (int, str):
        raise bad_request(f"parameter '{PARAMETER}' must be an integer or a string")
    return value or None


def sequence_of(request: InferRequest) -> SequenceName | None:
    """The sequence that ``request`` belongs to."""
    number = sequence_id(request.parameters)
    return None if number is None else SequenceName(request.model, number)
