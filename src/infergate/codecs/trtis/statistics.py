"""Converts the statistics of a model version between ModelVersionStatus and Triton's statistics
extension."""

from __future__ import annotations

from typing import Any, Final

from infergate.core.tensor import Parameters

_UINT64: Final = range(2**64)
_ALL_SIZES: Final = 1
"""The batch size that represents all sizes (Rule 2 of ``server_status``)."""
_DURATIONS: Final = {
    "success": "success",
    "fail": "failed",
    "queue": "queue",
    "compute_input": "compute_input",
    "compute_infer": "compute_infer",
    "compute_output": "compute_output",
}
"""The durations in ``inference_stats``: the V2 name, and the name in the legacy API."""
_COMPUTE: Final = ("compute_input", "compute_infer", "compute_output")
"""Since v1.13, these durations replace ``compute``, which is their sum."""
_BATCH_SIZE: Final = "batch_size"


def write_statistics(version: Any, statistics: Parameters) -> None:
    """Fill a ModelVersionStatus with a backend's ``statistics``, which have the form of Triton's
    extension. A value that is not a valid count becomes 0."""
    version.model_execution_count = _as_uint64(statistics.get("execution_count"))
    version.model_inference_count = _as_uint64(statistics.get("inference_count"))
    version.last_inference_timestamp_milliseconds = _as_uint64(statistics.get("last_inference"))
    batch_stats = statistics.get("batch_stats")
    by_size = {
        _as_uint64(entry.get(_BATCH_SIZE)): entry
        for entry in (batch_stats if isinstance(batch_stats, list) else [])
        if isinstance(entry, dict) and ("success" in entry or "fail" in entry)
    }
    for size, stats in by_size.items() or (
        (_ALL_SIZES, _as_object(statistics.get("inference_stats"))),
    ):
        # Like legacy servers, list only batch sizes that have occurred.
        if size < 2**32 and any(_count(stats, name) for name in ("success", "fail")):
            _write_size(version.infer_stats[size], stats)


def _write_size(entry: Any, stats: Parameters) -> None:
    for v2_name, api_name in _DURATIONS.items():
        if _count(stats, v2_name):
            _write_duration(getattr(entry, api_name), _count(stats, v2_name), _time(stats, v2_name))
    if count := _count(stats, "compute_infer"):
        time = sum(_time(stats, name) for name in _COMPUTE)
        _write_duration(entry.compute, count, min(time, _UINT64[-1]))


def read_statistics(model: str, name: str, version: Any) -> Parameters:
    """Return the statistics of the version ``name`` of ``model`` in the form of Triton's extension.
    Each entry of ``batch_stats`` contains all statistics of the requests with its batch size."""
    sizes = {
        size: {
            v2_name: _read_duration(version.infer_stats[size], api_name)
            for v2_name, api_name in _DURATIONS.items()
        }
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
                part: min(sum(stats[key][part] for stats in sizes.values()), _UINT64[-1])
                for part in ("count", "ns")
            }
            for key in _DURATIONS
        },
        "batch_stats": [{_BATCH_SIZE: size, **stats} for size, stats in sizes.items()],
    }


def _read_duration(stats: Any, name: str) -> dict[str, int]:
    """Read the duration ``name``. Servers before v1.13 report only the sum of the compute parts."""
    duration = getattr(stats, name)
    if name == "compute_infer" and not duration.count:
        duration = stats.compute
    return {"count": duration.count, "ns": duration.total_time_ns}


def _write_duration(duration: Any, count: int, time: int) -> None:
    duration.count = count
    duration.total_time_ns = time


def _count(stats: Parameters, name: str) -> int:
    return _as_uint64(_as_object(stats.get(name)).get("count"))


def _time(stats: Parameters, name: str) -> int:
    return _as_uint64(_as_object(stats.get(name)).get("ns"))


def _as_object(value: Any) -> Parameters:
    return value if isinstance(value, dict) else {}


def _as_uint64(value: Any) -> int:
    return value if type(value) is int and value in _UINT64 else 0
