"""Selects the inferences of a route that are recorded or logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from infergate.core.exchange import Exchange
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest
from infergate.core.records import record
from infergate.core.request_context import RequestContext
from infergate.core.sequences import sequence_key
from infergate.routing.split import pick_target

_ALL: Final = 100.0


@record
class RouteObserver:
    """An ``ExchangeObserver`` that consists of three functions."""

    selects: Callable[[InferRequest, RequestContext], bool]
    observe: Callable[[Exchange, MemoryAccount], None]
    count_lost: Callable[[], None]


def is_sampled(percent: float, route: str, request: InferRequest, request_id: str) -> bool:
    """Return whether ``request`` is among the selected ``percent`` of the inferences on ``route``.
    The choice depends on ``request_id`` or, for sequences, on the sequence, so that every process
    makes the same choice for all requests of a sequence."""
    if percent >= _ALL:
        return True
    sequence = sequence_key(request)
    key = request_id if sequence is None else f"{sequence.model}\0{sequence.id}"
    return pick_target((percent,), f"{route}\0record\0{key}") is not None
