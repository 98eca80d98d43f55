"""Sequences: series of inferences across which a server keeps state.

The parameters have Triton's names. The parameter ``sequence_id``, an integer or a string,
identifies a sequence within a model; 0 and the empty string mean no sequence. Codecs reject other
types, because servers interpret them differently, and the gateway must not start a sequence that
cannot be continued."""

from __future__ import annotations

from typing import Final, NamedTuple

from infergate.core.errors import bad_request
from infergate.core.messages import InferRequest
from infergate.core.tensor import Parameters

SEQUENCE_ID: Final = "sequence_id"

SequenceId = int | str


class SequenceKey(NamedTuple):
    """A sequence of a model. All versions of the model share its sequences."""

    model: str
    id: SequenceId


def sequence_id(parameters: Parameters) -> SequenceId | None:
    """Return the id of the sequence that an inference with ``parameters`` belongs to, or None.
    Raises BAD_REQUEST for a value of any type except integers and strings."""
    value = parameters.get(SEQUENCE_ID, 0)
    if type(value) not in (int, str):
        raise bad_request(f"parameter '{SEQUENCE_ID}' must be an integer or a string")
    return value or None


def sequence_key(request: InferRequest) -> SequenceKey | None:
    """Return the sequence that ``request`` belongs to, or None."""
    id_ = sequence_id(request.parameters)
    return None if id_ is None else SequenceKey(request.model, id_)
