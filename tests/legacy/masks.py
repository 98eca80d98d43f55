"""Removes from a response the parts that differ between runs: request ids, times and statistics.

Statuses and gRPC messages are written again without these parts; other bytes stay unchanged.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format

from legacy.messages import Messages, debug_string
from legacy.replay import Response

_MESSAGES = Messages("1.9")
_STATISTICS = (
    "infer_stats",
    "model_execution_count",
    "model_inference_count",
    "last_inference_timestamp_milliseconds",
)


def masked(response: Response) -> bytes:
    """Return the bytes of a response with ``request_id: N``. In a response with a status, mask the
    body and, after a check, its Content-Length."""
    raw = re.sub(rb"request_id: \d+", b"request_id: N", response.raw)
    status = _status_of(response.body)
    if status is None:
        return raw
    assert response.header("Content-Length") == str(len(response.body))
    head = raw.partition(b"\r\n\r\n")[0]
    return re.sub(rb"Content-Length: \d+", b"Content-Length: N", head) + debug_string(status)


def _status_of(body: bytes) -> Any:
    """Return the ServerStatus that a body holds, as text or in binary, or None."""
    if body.startswith(b"id: "):
        return without_statistics(text_format.Parse(body.decode(), _MESSAGES.ServerStatus()))
    if body.startswith(b"\n\x0atrtis-gold\x12"):
        return without_statistics(_MESSAGES.ServerStatus.FromString(body))
    return None


def without_statistics(status: Any) -> Any:
    """Clear the uptime and the statistics of a ServerStatus, and return the status."""
    status.ClearField("uptime_ns")
    for field, _ in status.ListFields():
        if field.name.endswith("_stats"):
            status.ClearField(field.name)
    for model in status.model_status.values():
        for version in model.version_status.values():
            for name in _STATISTICS:
                version.ClearField(name)
    return status


def masked_message(method: str, data: bytes) -> bytes:
    """Return a serialized gRPC response with request_id 0, without the parts that differ between
    runs.

    The maps of a status are sorted, because C++ writes them in hash order.
    """
    kind = "Infer" if method == "StreamInfer" else method
    message = getattr(_MESSAGES, f"{kind}Response").FromString(data)
    message.request_status.request_id = 0
    if kind == "Status" and message.HasField("server_status"):
        without_statistics(message.server_status)
    masked_data: bytes = message.SerializeToString(deterministic=True)
    return masked_data
