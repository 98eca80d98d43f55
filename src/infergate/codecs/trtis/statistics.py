"""What servers count of a model's version: as a status of the API tells it ⇄ as V2 does."""

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


_BATCH_SIZE: Final = "batch_size"


def write_statistics(version: Any, counted: Parameters) -> None:
    """Fill a ModelVersionStatus with ``counted``, named as in Triton's extension. What is no count
    there is 0, for it comes from a server."""
    version.model_execution_count = _number(counted.get("execution_count"))
    version.model_inference_count = _number(counted.get("inference_count"))
    version.last_inference_timestamp_milliseconds = _number(counted.get("last_inference"))
    batches = counted.get("batch_stats")
    of_requests = {
        _number(each.get(_BATCH_SIZE)): each
        for each in (batches if isinstance(batches, list) else [])
        if isinstance(each, dict) and ("success" in each or "fail" in each)
    }
    for size, stats in of_requests.items() or ((_ALL, _members(counted.get("inference_stats"))),):
        # as the servers: a size is there once there was a request of it
        if size < 2**32 and any(_count(stats, name) for name in ("success", "fail")):
            _write_size(version.infer_stats[size], stats)


def _write_size(told: Any, stats: Parameters) -> None:
    for theirs, ours in _SAME.items():
        if _count(stats, theirs):
            _write(getattr(told, ours), _count(stats, theirs), _time(stats, theirs))
    if count := _count(stats, "compute_infer"):
        time = sum(_time(stats, name) for name in _COMPUTE)
        _write(told.compute, count, min(time, _NUMBERS[-1]))


def read_statistics(model: str, name: str, version: Any) -> Parameters:
    """What a ModelVersionStatus tells of the version ``name`` of ``model``, named as in Triton's
    extension. Members of ``batch_stats`` hold all that is counted of requests of their size."""
    sizes = {
        size: {theirs: _read(version.infer_stats[size], ours) for theirs, ours in _SAME.items()}
        for size in sorted(version.infer_stats)
    }
    return {
        "name": model,
        "version": name,
        "last_inference": version.last_inference_timestamp_milliseconds,
        "inference_count": version.model_inference_count
        or sum(size * stats["success"]["count"] for size, stats in sizes.items()),
        "execution_count": version.model_execution_count,
        "inference_stats": {
            key: {
                part: min(sum(stats[key][part] for stats in sizes.values()), _NUMBERS[-1])
                for part in ("count", "ns")
            }
            for key in _SAME
        },
        "batch_stats": [{_BATCH_SIZE: size, **stats} for size, stats in sizes.items()],
    }


def _read(stats: Any, name: str) -> dict[str, int]:
    """A duration; before v1.13 there is none of ``compute_infer`` but one of all its parts."""
    duration = getattr(stats, name)
    if name == "compute_infer" and not duration.count:
        duration = stats.compute
    return {"count": duration.count, "ns": duration.total_time_ns}


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
