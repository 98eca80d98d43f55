"""``accumulate``: a stateful model that sums over a sequence of requests.

Sequences are ordered by their last use. Each request first drops idle sequences, so clients that
never end their sequences can neither fill the memory nor block the model for longer than
IDLE_SECONDS.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.model import Signature, UnaryModel, invalid_request
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import Parameters, tensor_from_array

MAX_SEQUENCES: Final = 1024
"""Maximum number of active sequences (Triton: max_candidate_sequences, set per model)."""
IDLE_SECONDS: Final = 60.0
"""Seconds after which an idle sequence is dropped (Triton: max_sequence_idle_microseconds, 1 s)."""
MAX_ID_CHARS: Final = 128
"""Maximum length of a string sequence ID, in characters (Triton: 128 bytes)."""

_MODEL: Final = "accumulate"
SequenceId = int | str


@dataclass(slots=True)
class _SequenceState:
    total: npt.NDArray[np.int32]
    last_used: float


class Accumulate(UnaryModel):
    """INPUT INT32 [1] → OUTPUT INT32 [1], the sum of the sequence so far, modulo 2^32.

    Request parameters: ``sequence_id`` (an integer from 1 to 2^64-1 or a string),
    ``sequence_start`` and ``sequence_end``. ``sequence_start`` starts a new sum even if the
    sequence is active.
    """

    signature = Signature(
        _MODEL,
        (TensorMetadata("INPUT", "INT32", (1,)),),
        (TensorMetadata("OUTPUT", "INT32", (1,)),),
        sequence_batching={
            "max_sequence_idle_microseconds": int(IDLE_SECONDS * 1_000_000),
            "oldest": {"max_candidate_sequences": MAX_SEQUENCES},
        },
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sequences: OrderedDict[SequenceId, _SequenceState] = OrderedDict()

    def infer(self, request: InferRequest) -> InferResponse:
        """Add the input to its sequence. Raises BAD_REQUEST and, beyond the limit, OVERLOADED."""
        inputs = self.signature.checked_inputs(request)
        sequence_id = _sequence_id(request.parameters)
        is_start = _bool_parameter(request.parameters, "sequence_start")
        is_end = _bool_parameter(request.parameters, "sequence_end")
        now = self._clock()
        self._drop_idle(now)
        sequence = (
            self._start_sequence(sequence_id) if is_start else self._active_sequence(sequence_id)
        )
        sequence.total = sequence.total + inputs["INPUT"].numpy()
        sequence.last_used = now
        self._sequences.move_to_end(sequence_id)
        if is_end:
            del self._sequences[sequence_id]
        return self.signature.build_response(
            request, (tensor_from_array("OUTPUT", Datatype.INT32, sequence.total),)
        )

    def _drop_idle(self, now: float) -> None:
        while self._sequences:
            oldest = next(iter(self._sequences))
            if now - self._sequences[oldest].last_used < IDLE_SECONDS:
                return
            del self._sequences[oldest]

    def _start_sequence(self, sequence_id: SequenceId) -> _SequenceState:
        if sequence_id not in self._sequences and len(self._sequences) >= MAX_SEQUENCES:
            raise GatewayError(
                Kind.OVERLOADED,
                f"model '{_MODEL}' already holds {MAX_SEQUENCES} sequences",
                origin=Origin.BACKEND,
                retry_after=1.0,
            )
        sequence = _SequenceState(np.zeros(1, dtype=np.int32), 0.0)
        self._sequences[sequence_id] = sequence
        return sequence

    def _active_sequence(self, sequence_id: SequenceId) -> _SequenceState:
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            raise invalid_request(
                f"inference request for sequence {sequence_id} to model '{_MODEL}' must specify "
                "the START flag on the first request of the sequence"
            )
        return sequence


def _sequence_id(parameters: Parameters) -> SequenceId:
    value: Any = parameters.get("sequence_id", 0)
    if type(value) not in (int, str):
        raise invalid_request("parameter 'sequence_id' must be an integer or a string")
    if value in (0, ""):
        raise invalid_request(
            f"inference request to model '{_MODEL}' must specify a non-zero or non-empty "
            "correlation ID"
        )
    if isinstance(value, str) and len(value) > MAX_ID_CHARS:
        raise invalid_request(f"parameter 'sequence_id' is longer than {MAX_ID_CHARS} characters")
    if isinstance(value, int) and not 0 < value < 2**64:
        raise invalid_request("parameter 'sequence_id' must be from 1 to 2^64-1")
    return value  # type: ignore[no-any-return]  # int or str, checked above


def _bool_parameter(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise invalid_request(f"parameter '{name}' must be true or false")
    return value
