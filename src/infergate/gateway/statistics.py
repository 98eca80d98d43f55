"""What has been counted and measured of models: by their servers, else by the gateway itself.

*Rule 1.* Clients choose names: no more than ``MOST`` models are counted, the least asked for is
forgotten first, and one that no route names and nobody declared is counted from its first success.
*Rule 2.* The gateway counts requests, whatever their batch, and all versions of a model together:
its time is the client's, from the request's head to the answer's making (of a stream's answers, the
last's); ``compute_infer`` is what of it was the backend's. Nothing is known of the backend's queue,
input and output: they are counted with a time of 0, for perf_analyzer reads them of every server.
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
    """Of one model. In seconds, ``last`` since the epoch."""

    last: float = 0.0
    successes: int = 0
    success_seconds: float = 0.0
    backend_seconds: float = 0.0
    failures: int = 0
    failure_seconds: float = 0.0


class Figures:
    """The gateway's own. ``named`` are models that are counted from the start."""

    def __init__(self, named: Iterable[str]) -> None:
        self._named = frozenset(named)
        self._of: Final[OrderedDict[str, _Figures]] = OrderedDict()

    def name(self, named: Iterable[str]) -> None:
        """From now on these are counted from the start. What was counted stays."""
        self._named = frozenset(named)

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Count a finished request, which took ``seconds``. ``now`` is the wall clock."""
        if call.operation not in _INFERENCES or not call.route:
            return
        figures = self._of.get(call.model)
        if figures is None:
            if call.outcome != _OK and call.model not in self._named:
                return
            figures = self._of[call.model] = _Figures()
            if len(self._of) > MOST:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(call.model)
        if call.outcome == _OK:
            figures.last = now
            figures.successes += 1
            figures.success_seconds += seconds
            figures.backend_seconds += call.backend_seconds
        else:
            figures.failures += 1
            figures.failure_seconds += seconds

    def of(self, model: str, version: str) -> ModelStatistics:
        """What has been counted of ``model``, told as of ``version``, which is not empty."""
        figures = self._of.get(model, _Figures())
        stats = {
            "success": _stat(figures.successes, figures.success_seconds),
            "fail": _stat(figures.failures, figures.failure_seconds),
            "queue": _stat(figures.successes, 0.0),
            "compute_input": _stat(figures.successes, 0.0),
            "compute_infer": _stat(figures.successes, figures.backend_seconds),
            "compute_output": _stat(figures.successes, 0.0),
        }
        told = {
            "name": model,
            "version": version,
            _LATEST: round(figures.last * 1000),
            "inference_count": figures.successes,
            "execution_count": figures.successes,
            "inference_stats": stats,
        }
        return ModelStatistics((told,))


def _stat(count: int, seconds: float) -> Parameters:
    return {"count": count, "ns": round(seconds * 1e9)}


def together(answers: Sequence[ModelStatistics]) -> ModelStatistics:
    """What several servers alike have counted, as one: counts and times added up."""
    found: dict[tuple[Any, Any], Parameters] = {}
    for answer in answers:
        for each in answer.models:
            key = (str(each.get("name")), str(each.get("version")))
            found[key] = _sum(found[key], each) if key in found else each
    return ModelStatistics(tuple(found.values()))


def _sum(one: Parameters, other: Parameters) -> Parameters:
    both = {key: _both(key, one[key], other[key]) for key in one if key in other}
    return {**other, **one, **both}


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
    """Those of one size added up."""
    found: dict[str, Any] = {}
    for each in listed:
        if isinstance(each, dict):
            size = each.get("batch_size")
            known = found.get(str(size))
            found[str(size)] = each if known is None else {**_sum(known, each), "batch_size": size}
    return list(found.values())
