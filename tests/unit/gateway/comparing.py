"""A gateway that compares the responses of a mirror, with backends in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import numpy as np
from fakes import Memory, perform

from contexts import new_context
from infergate.comparison.model_summary import ModelSummary
from infergate.comparison.settings import MirrorComparison
from infergate.comparison.summary import Summary
from infergate.core.counters import RouteCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.gateway.comparer import MirrorComparer
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.routing.table import MirrorTarget, Rewrite, Route, RouteTable
from inline_offload import InlineOffload
from waiting import until

T = TypeVar("T")
REQUEST = InferRequest("m", "", "id", inputs=(Tensor("x", Datatype.UINT8, (3,), b"abc"),))


def output(*values: float, name: str = "y", datatype: Datatype = Datatype.FP32) -> Tensor:
    return tensor_from_array(name, datatype, np.array(values))


def response(*outputs: Tensor, is_last: bool = False) -> InferResponse:
    return InferResponse("m", "1", "id", {}, outputs, is_last)


class Streaming(Memory):
    """A backend whose streams yield ``answers``, and then raise ``error`` if there is one."""

    answers: Sequence[InferResponse] = ()
    error: GatewayError | None = None

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self.requests.append(request)
        for each in self.answers:
            yield each
        if self.error is not None:
            raise self.error


class Store:
    """A store that keeps mismatches in memory and returns ``result``."""

    def __init__(self, result: str = "stored") -> None:
        self.result = result
        self.mismatches: list[tuple[Exchange, Outcome, str]] = []
        self.searches = 0

    def store(self, exchange: Exchange, mirrored: Outcome, mirror: str) -> str:
        self.mismatches.append((exchange, mirrored, mirror))
        return self.result

    def remove_expired(self) -> None:
        self.searches += 1


class Harness:
    """A gateway that mirrors requests from ``own`` to ``mirror``. ``twin`` can measure noise."""

    def __init__(
        self,
        comparison: MirrorComparison | None = None,
        *,
        percent: float = 100.0,
        store: Store | None = None,
        **fields: Any,
    ) -> None:
        self.own, self.mirror, self.twin = Streaming("own"), Streaming("mirror"), Streaming("twin")
        self.counters, self.offload, self.store = (
            RouteCounters(),
            InlineOffload(charges_memory=False),
            store,
        )
        for backend in (self.own, self.mirror, self.twin):
            backend.answer = response(output(1, 2))
        self.comparer: MirrorComparer | None = None
        self.configure(comparison or MirrorComparison(), percent=percent, **fields)

    def configure(
        self, comparison: MirrorComparison, percent: float = 100.0, **fields: Any
    ) -> None:
        """Replace the gateway, as a reload does."""
        rewrite = fields.get("rewrite", Rewrite())
        mirror = MirrorTarget("mirror", percent, 10_000, comparison, rewrite)
        routes = [Route("m", fields.pop("backend", "own"), mirror=mirror, **fields)]
        self.comparer = MirrorComparer(
            routes,
            self.offload,
            self.offload.close,
            lambda _: self.counters,
            lambda _: self.store,
            self.comparer,
        )
        backends: Any = {each.name: each for each in (self.own, self.mirror, self.twin)}
        self.gateway = RoutingGateway(
            RouteTable(routes),
            backends,
            {},
            GatewayOptions(counters_of=lambda _: self.counters, comparer=self.comparer),
        )

    async def infer(self, request: InferRequest = REQUEST, **fields: Any) -> InferResponse:
        return await perform(self.gateway, request, InferResponse, new_context(**fields))

    def stream(self, **fields: Any) -> AsyncGenerator[InferResponse, None]:
        context = new_context(**fields)
        return self.gateway.stream(REQUEST, self.gateway.bind("m", "", context), context)

    @property
    def results(self) -> dict[str, int]:
        return dict(self.counters.comparisons)

    @property
    def held_bytes(self) -> int:
        """The bytes of all comparisons that wait or run."""
        assert self.comparer is not None
        return self.comparer._bytes

    async def wait_for_results(self, number: int) -> None:
        await until(lambda: sum(self.results.values()) >= number)

    async def check_results(self, **expected: int) -> None:
        """Wait for as many results as ``expected`` counts, and compare the counts."""
        await self.wait_for_results(sum(expected.values()))
        assert self.results == expected

    @property
    def summaries(self) -> Summary:
        total = Summary()
        for summary in self.gateway.comparisons():
            total.merge(summary)
        return total

    def summary(self, model: str = "m") -> ModelSummary:
        return self.summaries.routes["m"][model]
