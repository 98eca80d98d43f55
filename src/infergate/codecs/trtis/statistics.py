"""What V2 servers count of a model's version, as a status of the API tells it."""

from __future__ import annotations

from typing import Any, Final

from infergate.core.tensor import Parameters

_NUMBERS: Final = range(2**64)
_ALL: Final = 1
"""The batch size that stands for all (Rule 2 of ``status``)."""
_SAME: Final = {
    "success": "success",
    "fail": "failed",
    "queue": "queue",
    "compute_input": "compute_input",
    "compute_infer": "compute_infer",
    "compute_output": "compute_output",
}
"""Of ``inference_stats``: V2's name and the API's."""
_COMPUTE: Final = ("compute_input", "compute_infer", "compute_output")
"""Together, since v1.13, what ``compute`` was before."""


def write_statistics(version: Any, counted: Parameters) -> None:
    """Fill a ModelVersionStatus with ``counted``, named as in Triton's extension. What is no count
    there is 0, for it comes from a server."""
    version.model_execution_count = _number(counted.get("execution_count"))
    version.model_inference_count = _number(counted.get("inference_count"))
    version.last_inference_timestamp_milliseconds = _number(counted.get("last_inference"))
    stats = _members(counted.get("inference_stats"))
    if not any(_count(stats, name) for name in ("success", "fail")):
        return  # as the servers: a size is there once there was a request of it
    told = version.infer_stats[_ALL]
    for theirs, ours in _SAME.items():
        if _count(stats, theirs):
            _write(getattr(told, ours), _count(stats, theirs), _time(stats, theirs))
    if count := _count(stats, "compute_infer"):
        time = sum(_time(stats, name) for name in _COMPUTE)
        _write(told.compute, count, min(time, _NUMBERS[-1]))


def _write(duration: Any, count: int, time: int) -> None:
    duration.count = count
    duration.total_time_ns = time


def _count(stats: Parameters, name: str) -> int:
    return _number(_members(stats.get(name)).get("count"))


def _time(stats: Parameters, name: str) -> int:
    return _number(_members(stats.get(name)).get("ns"))


def _members(value: Any) -> Parameters:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if type(value) is int and value in _NUMBERS else 0
