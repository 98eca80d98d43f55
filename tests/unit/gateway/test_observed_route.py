"""Routes whose inferences are passed to observers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from fakes import Memory, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import OK, Exchange
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable
from memory_budget import Budget

INPUT = Tensor("x", Datatype.UINT8, (3,), b"abc")
REQUEST = InferRequest("m", "", "id", inputs=(INPUT,))


class Observer:
    """An observer that keeps the exchanges of one model."""

    def __init__(self, model: str = "m") -> None:
        self.selected_model = model
        self.exchanges: list[Exchange] = []
        self.lost_count = 0

    def selects(self, request: InferRequest, context: RequestContext) -> bool:
        return request.model == self.selected_model

    def observe(self, exchange: Exchange, memory: MemoryAccount) -> None:
        self.exchanges.append(exchange)

    def count_lost(self) -> None:
        self.lost_count += 1


class Harness:
    def __init__(self, *observers: Observer, **fields: Any) -> None:
        route = Route("m", "own", has_layers=True, **fields)
        self.backend = Memory("own")
        self.gateway = RoutingGateway(
            RouteTable([route]),
            {"own": self.backend},
            {},
            GatewayOptions(observers={0: observers}),
        )

    async def infer(self, request: InferRequest = REQUEST, **fields: Any) -> InferResponse:
        return await perform(self.gateway, request, InferResponse, new_context(**fields))

    def stream(self, context: RequestContext) -> AsyncGenerator[InferResponse, None]:
        return self.gateway.stream(REQUEST, self.gateway.bind("m", "", context), context)


async def test_observers_receive_the_inference_with_the_names_of_the_client() -> None:
    first, second, other = Observer(), Observer(), Observer("n")
    harness = Harness(first, second, other, rewrite=Rewrite(model="backend's name"))
    response = await harness.infer(headers={"a": "b"}, request_id="7")
    (exchange,) = first.exchanges
    assert exchange.request is REQUEST
    assert exchange.outcome.responses == (response,)
    assert exchange.outcome.kind == OK
    assert (exchange.route, exchange.backend, exchange.request_id) == ("m", "own", "7")
    assert exchange.headers == {"a": "b"}
    assert not exchange.is_stream
    assert second.exchanges == first.exchanges
    assert other.exchanges == []


async def cancelled(operation: Operation, context: RequestContext) -> Response:
    raise asyncio.CancelledError


async def test_observers_receive_errors_and_cancellations() -> None:
    observer = Observer()
    harness = Harness(observer)
    harness.backend.answer = GatewayError(Kind.TIMEOUT, "too late")
    with raises_kind(Kind.TIMEOUT):
        await harness.infer()
    harness.backend.perform = cancelled  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await harness.infer()
    kinds = [each.outcome.kind for each in observer.exchanges]
    assert kinds == ["timeout", "cancelled"]


async def test_requests_with_shared_memory_are_not_observed() -> None:
    observer = Observer()
    harness = Harness(observer)
    region = Tensor("x", Datatype.UINT8, (3,), b"", shared_memory=RegionRef("r", 0, 3))
    with pytest.raises(GatewayError):
        await harness.infer(InferRequest("m", "", "id", inputs=(region,)))
    assert observer.exchanges == []


async def test_the_responses_of_a_stream_are_charged_until_it_ends() -> None:
    observer, memory = Observer(), Budget(2000)
    harness = Harness(observer)
    context = new_context(memory=memory)
    async with aclosing(harness.stream(context)) as responses:
        async for _ in responses:
            assert len(INPUT.data) < memory.held < 2000
    assert memory.held == 0
    (exchange,) = observer.exchanges
    assert exchange.is_stream
    assert len(exchange.outcome.responses) == len(exchange.outcome.offsets) == 1


async def test_a_stream_is_served_but_only_counted_if_memory_is_short() -> None:
    observer = Observer()
    harness = Harness(observer)
    responses = [each async for each in harness.stream(new_context(memory=Budget(2)))]
    assert len(responses) == 1
    assert (observer.exchanges, observer.lost_count) == ([], 1)


async def test_a_stream_that_the_client_leaves_is_cancelled() -> None:
    observer = Observer()
    async with aclosing(Harness(observer).stream(new_context())) as responses:
        await anext(responses)
    (exchange,) = observer.exchanges
    assert exchange.outcome.kind == "cancelled"
