"""Writes responses about liveness, readiness and the list of models.

``GET /v1/models/m`` is also a path of TensorFlow Serving. The response has the members of both
protocols, so that clients of both protocols accept it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from infergate.codecs.kserve_v1.errors import JSON_HEADERS
from infergate.core.decimals import parse_decimal
from infergate.core.messages import ModelIndexEntry
from infergate.core.wire import HttpResponse

READY: Final = "READY"
_DEFAULT_VERSION: Final = "1"
"""The version in the response for a model without numeric versions."""
_MAX_VERSION: Final = 2**63 - 1
_STATES: Final = {READY: "AVAILABLE", "UNAVAILABLE": "END"}
"""TensorFlow Serving's name for each state."""


def write_liveness(*, ok: bool) -> HttpResponse:
    """Return the response to ``GET /``."""
    return _response(200, {"status": "alive"}) if ok else _response(503, {"status": "not live"})


def write_list(entries: Sequence[ModelIndexEntry]) -> HttpResponse:
    """Return the response with the names of all models."""
    return _response(200, {"models": list(dict.fromkeys(entry.name for entry in entries))})


def write_readiness(model: str, entries: Sequence[ModelIndexEntry]) -> HttpResponse:
    """Return the response with the state of each numeric version in ``entries`` or, if no version
    is numeric, of version 1. If no version is ready, the status is 503."""
    if not any(entry.state == READY for entry in entries):
        return _response(503, {"error": f"Model with name {model} is not ready."})
    numbered = [
        entry for entry in entries if parse_decimal(entry.version, _MAX_VERSION) is not None
    ]
    statuses = [
        {
            "version": entry.version if numbered else _DEFAULT_VERSION,
            "state": _STATES.get(entry.state, "UNKNOWN"),
            "status": {"error_code": "OK", "error_message": entry.reason},
        }
        for entry in sorted(numbered, key=lambda entry: -int(entry.version)) or entries[:1]
    ]
    return _response(200, {"name": model, "ready": True, "model_version_status": statuses})


def _response(status: int, document: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse(status, JSON_HEADERS, [orjson.dumps(document)])
