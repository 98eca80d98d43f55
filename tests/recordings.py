"""Writes recording files for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.recording.encoding import encode_exchange
from infergate.recording.writer import RecordingFile


def tensor(name: str, *values: float) -> Tensor:
    """Return an FP32 tensor of one dimension."""
    return tensor_from_array(name, Datatype.FP32, np.array(values, np.float32))


def exchange(number: int, model: str = "m", started_at: float = 0.0, **fields: Any) -> Exchange:
    """Return an exchange with the input ``x`` and the output ``y``, which both hold ``number``."""
    parameters: Mapping[str, Any] = fields.pop("parameters", {})
    request = InferRequest(model, inputs=(tensor("x", number),), parameters=parameters)
    response = InferResponse(model, outputs=(tensor("y", number),))
    outcome = fields.pop("outcome", Outcome((response,), None, 0.01))
    return Exchange(
        request, outcome, "v2-rest", "route", "b", f"id-{number}", started_at=started_at, **fields
    )


def write_recording(
    file: Path, exchanges: Iterable[Exchange], redacted: tuple[str, ...] = ()
) -> list[int]:
    """Write ``exchanges`` to ``file`` and return the positions of their frames."""
    recording, positions = RecordingFile(file), []
    for each in exchanges:
        positions.append(recording.size)
        recording.append(encode_exchange(each, {}, redacted))
    recording.close()
    return positions
