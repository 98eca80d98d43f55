"""Statistics of models, from their servers or from the gateway's own counters.

- Clients choose the names of models, so the gateway counts at most ``MAX_MODELS`` models, and drops
  the least recently used model first. If a model has no exact route and no metadata in the
  configuration, the gateway counts the model's requests from the first success.
- The gateway counts a batch as one request, and counts all versions of a model together. Times run
  from the arrival of the request's headers until the last response is built. ``compute_infer`` is
  the time that the backend took. The backend's queue, input and output times are unknown, and are
  reported as 0 with the same count, because perf_analyzer requires them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infergate.core.messages import (
    OPERATION_NAMES,
    STREAM_OPERATION_NAME,
    InferRequest,
    ModelStatistics,
)
from infergate.core.request_record import RequestRecord
from infergate.core.tensor import Parameters

MAX_MODELS: Final = 1024
_INFERENCES: Final = frozenset({OPERATION_NAMES[InferRequest], STREAM_OPERATION_NAME})
_OK: Final = "ok"
_LAST_INFERENCE: Final = "last_inference"
_BATCHES: Final = "batch_stats"


@dataclass(slots=True)
class _ModelCounters:
    """The counters of one model. All times are in seconds. ``last_success_at`` is a Unix time."""

    last_success_at: float = 0.0
    successes: int = 0
    success_seconds: float = 0.0
    backend_seconds: float = 0.0
    failures: int = 0
    failure_seconds: float = 0.0


class GatewayStatistics:
    """The gateway's own counters. Requests for ``configured_models`` are counted even before the
    first success."""

    def __init__(self, configured_models: Iterable[str]) -> None:
        self._configured_models = frozenset(configured_models)
        self._counters: Final[OrderedDict[str, _ModelCounters]] = OrderedDict()

    def set_configured_models(self, configured_models: Iterable[str]) -> None:
        """Replace the configured models. Existing counters are kept."""
        self._configured_models = frozenset(configured_models)

    def record(self, record: RequestRecord, seconds: float, now: float) -> None:
        """Count a finished request that took ``seconds``, if it is an inference with a route.
        ``now`` is the wall-clock time."""
        if record.operation not in _INFERENCES or not record.route:
            return
        counters = self._counters.get(record.model)
        if counters is None:
            if record.outcome != _OK and record.model not in self._configured_models:
                return
            counters = self._counters[record.model] = _ModelCounters()
            if len(self._counters) > MAX_MODELS:
                self._counters.popitem(last=False)
        else:
            self._counters.move_to_end(record.model)
        if record.outcome == _OK:
            counters.last_success_at = now
            counters.successes += 1
            counters.success_seconds += seconds
            counters.backend_seconds += record.backend_seconds
        else:
            counters.failures += 1
            counters.failure_seconds += seconds

    def statistics_of(self, model: str, version: str) -> ModelStatistics:
        """Return the statistics of ``model``, labeled with ``version``, which must not be empty."""
        counters = self._counters.get(model, _ModelCounters())
        stats = {
            "success": _duration_statistic(counters.successes, counters.success_seconds),
            "fail": _duration_statistic(counters.failures, counters.failure_seconds),
            "queue": _duration_statistic(counters.successes, 0.0),
            "compute_input": _duration_statistic(counters.successes, 0.0),
            "compute_infer": _duration_statistic(counters.successes, counters.backend_seconds),
            "compute_output": _duration_statistic(counters.successes, 0.0),
        }
        statistics = {
            "name": model,
            "version": version,
            _LAST_INFERENCE: round(counters.last_success_at * 1000),
            "inference_count": counters.successes,
            "execution_count": counters.successes,
            "inference_stats": stats,
        }
        return ModelStatistics((statistics,))


def _duration_statistic(count: int, seconds: float) -> Parameters:
    return {"count": count, "ns": round(seconds * 1e9)}


def merge_statistics(responses: Sequence[ModelStatistics]) -> ModelStatistics:
    """Merge several servers' statistics of the same models by adding counts and durations."""
    merged: dict[tuple[Any, Any], Parameters] = {}
    for response in responses:
        for model in response.models:
            key = (str(model.get("name")), str(model.get("version")))
            merged[key] = _merge_models(merged[key], model) if key in merged else model
    return ModelStatistics(tuple(merged.values()))


def _merge_models(first: Parameters, second: Parameters) -> Parameters:
    common = {key: _merge_values(key, first[key], second[key]) for key in first if key in second}
    return {**second, **first, **common}


def _merge_values(key: str, first: Any, second: Any) -> Any:
    match first, second:
        case (int(), int()) if key == _LAST_INFERENCE:
            return max(first, second)
        case dict(), dict():
            return _merge_models(first, second)
        case (list(), list()) if key == _BATCHES:
            return _merge_batches(first + second)
        case (int(), int()) | (list(), list()):
            return first + second
    return first


def _merge_batches(batches: list[Any]) -> list[Any]:
    by_size: dict[str, Any] = {}
    for batch in batches:
        if isinstance(batch, dict):
            size = batch.get("batch_size")
            previous = by_size.get(str(size))
            by_size[str(size)] = (
                batch
                if previous is None
                else {**_merge_models(previous, batch), "batch_size": size}
            )
    return list(by_size.values())
