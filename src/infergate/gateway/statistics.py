"""Statistics of models: those of their servers, and those that the gateway counts itself.

- Clients choose names, so at most ``MAX_MODELS`` models are counted; the one least recently used is
  dropped first, and a model that is neither routed by name nor declared is counted from its first
  success.
- The gateway counts requests, whatever their batch size, and all versions of a model together.
  Times are the client's, from the request's headers until its response is built (of a stream, the
  last response); ``compute_infer`` is the backend's part. Queue, input and output times of the
  backend are unknown: they have the same count and a time of 0, because perf_analyzer requires
  them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infergate.core.call import Call
from infergate.core.messages import OPERATIONS, STREAMED, InferRequest, ModelStatistics
from infergate.core.tensor import Parameters

MOST: Final = 1024
_INFERENCES: Final = frozenset({OPERATIONS[InferRequest], STREAMED})
_OK: Final = "ok"
_LATEST: Final = "last_inference"
_BATCHES: Final = "batch_stats"


@dataclass(slots=True)
class _Figures:
    """The counters of one model. Times are in seconds, ``last_success_at`` since the epoch."""

    last: float = 0.0
    successes: int = 0
    success_seconds: float = 0.0
    backend_seconds: float = 0.0
    failures: int = 0
    failure_seconds: float = 0.0


class Figures:
    """The statistics that the gateway counts itself. ``configured_models`` are counted from the
    start."""

    def __init__(self, named: Iterable[str]) -> None:
        self._named = frozenset(named)
        self._of: Final[OrderedDict[str, _Figures]] = OrderedDict()

    def name(self, named: Iterable[str]) -> None:
        """Count these models from the start, from now on. Existing counters stay."""
        self._named = frozenset(named)

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Count a finished request, which took ``seconds``. ``now`` is the wall-clock time."""
        if call.operation not in _INFERENCES or not call.route:
            return
        counters = self._of.get(call.model)
        if counters is None:
            if call.outcome != _OK and call.model not in self._named:
                return
            counters = self._of[call.model] = _Figures()
            if len(self._of) > MOST:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(call.model)
        if call.outcome == _OK:
            counters.last = now
            counters.successes += 1
            counters.success_seconds += seconds
            counters.backend_seconds += call.backend_seconds
        else:
            counters.failures += 1
            counters.failure_seconds += seconds

    def of(self, model: str, version: str) -> ModelStatistics:
        """Return the statistics of ``model``, reported for ``version``, which is not empty."""
        counters = self._of.get(model, _Figures())
        stats = {
            "success": _stat(counters.successes, counters.success_seconds),
            "fail": _stat(counters.failures, counters.failure_seconds),
            "queue": _stat(counters.successes, 0.0),
            "compute_input": _stat(counters.successes, 0.0),
            "compute_infer": _stat(counters.successes, counters.backend_seconds),
            "compute_output": _stat(counters.successes, 0.0),
        }
        statistics = {
            "name": model,
            "version": version,
            _LATEST: round(counters.last * 1000),
            "inference_count": counters.successes,
            "execution_count": counters.successes,
            "inference_stats": stats,
        }
        return ModelStatistics((statistics,))


def _stat(count: int, seconds: float) -> Parameters:
    return {"count": count, "ns": round(seconds * 1e9)}


def together(answers: Sequence[ModelStatistics]) -> ModelStatistics:
    """Merge the statistics of several servers of the same models: counts and times are added up."""
    merged: dict[tuple[Any, Any], Parameters] = {}
    for response in answers:
        for model in response.models:
            key = (str(model.get("name")), str(model.get("version")))
            merged[key] = _sum(merged[key], model) if key in merged else model
    return ModelStatistics(tuple(merged.values()))


def _sum(one: Parameters, other: Parameters) -> Parameters:
    common = {key: _both(key, one[key], other[key]) for key in one if key in other}
    return {**other, **one, **common}


def _both(key: str, one: Any, other: Any) -> Any:
    match one, other:
        case (int(), int()) if key == _LATEST:
            return max(one, other)
        case int(), int():
            return one + other
        case dict(), dict():
            return _sum(one, other)
        case (list(), list()) if key == _BATCHES:
            return _batches(one + other)
        case list(), list():
            return one + other
    return one


def _batches(listed: list[Any]) -> list[Any]:
    """Merge the entries that have the same batch size."""
    by_size: dict[str, Any] = {}
    for batch in listed:
        if isinstance(batch, dict):
            size = batch.get("batch_size")
            previous = by_size.get(str(size))
            by_size[str(size)] = (
                batch if previous is None else {**_sum(previous, batch), "batch_size": size}
            )
    return list(by_size.values())
