"""Describes the records and the damaged parts of a file without their tensor data."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from infergate.core.exchange import Outcome
from infergate.core.tensor import Tensor
from infergate.recording.encoding import RecordedExchange
from infergate.recording.reader import DamagedPart

Json = dict[str, Any]


def as_json(part: RecordedExchange | DamagedPart) -> Json:
    """Return a description of ``part`` as JSON data."""
    if isinstance(part, DamagedPart):
        return {"position": part.position, "length": part.length, "damaged": part.reason}
    exchange, request = part.exchange, part.exchange.request
    return {
        "position": part.position,
        "length": part.length,
        "time": _iso_time(exchange.started_at),
        "protocol": exchange.protocol,
        "route": exchange.route,
        "backend": exchange.backend,
        "request_id": exchange.request_id,
        "headers": dict(exchange.headers),
        "stream": exchange.is_stream,
        "sequence": part.sequence.id if part.sequence else None,
        "model": request.model,
        "version": request.version,
        "id": request.id,
        "inputs": _tensors(request.inputs),
        **_outcome(exchange.outcome),
        "further": {name: _outcome(outcome) for name, outcome in part.further_outcomes.items()},
        "redacted": list(part.redacted),
        "gateway_version": part.gateway_version,
    }


def _iso_time(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return None  # such a time occurs only in files that infergate did not write


def _tensors(tensors: Iterable[Tensor]) -> list[Json]:
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype.value,
            "shape": list(tensor.shape),
            "bytes": len(tensor.data),
        }
        for tensor in tensors
    ]


def _outcome(outcome: Outcome) -> Json:
    return {
        "outcome": outcome.kind,
        "error": "" if outcome.error is None else outcome.error.public,
        "seconds": outcome.duration,
        "responses": [_tensors(response.outputs) for response in outcome.responses],
    }


def as_text(part: RecordedExchange | DamagedPart) -> str:
    """Return a one-line description of ``part``. The description is not escaped: it may contain
    control characters from clients."""
    if isinstance(part, DamagedPart):
        return f"{part.position:>12}  DAMAGED  {part.length} bytes: {part.reason}"
    exchange, request = part.exchange, part.exchange.request
    outcome = exchange.outcome
    fields = [
        f"{part.position:>12}",
        _iso_time(exchange.started_at) or "-",
        f"{exchange.protocol:<10}",
        f"{request.model}{f'@{request.version}' if request.version else ''}",
        outcome.kind,
        f"{outcome.duration * 1000:.3g} ms",
        f"in={exchange.size - outcome.size}",
        f"out={outcome.size}",
    ]
    fields += [f"responses={len(outcome.responses)}"] if exchange.is_stream else []
    fields += [f"sequence={part.sequence.id}"] if part.sequence else []
    fields += [f"id={exchange.request_id}"] if exchange.request_id else []
    fields += [f"{name}={each.kind}" for name, each in part.further_outcomes.items()]
    return "  ".join(fields)
