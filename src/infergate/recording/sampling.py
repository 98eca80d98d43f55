"""Selects the inferences that are recorded."""

from __future__ import annotations

from typing import Final

from infergate.core.messages import InferRequest
from infergate.core.sequences import sequence_key
from infergate.routing.split import pick_target

_ALL: Final = 100.0


def is_sampled(percent: float, route: str, request: InferRequest, request_id: str) -> bool:
    """Return whether ``request`` is among the ``percent`` of the inferences on ``route`` that are
    recorded. The choice depends on ``request_id`` or, for sequences, on the sequence: every process
    selects either all requests of a sequence or none."""
    if percent >= _ALL:
        return True
    sequence = sequence_key(request)
    key = request_id if sequence is None else f"{sequence.model}\0{sequence.id}"
    return pick_target((percent,), f"{route}\0record\0{key}") is not None
