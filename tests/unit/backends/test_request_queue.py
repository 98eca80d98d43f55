"""The queue of a backend: priorities, displaced requests, and fairness between clients."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from contexts import new_context
from gateway_errors import raises_kind
from infergate.access.rules import AccessRule, AccessRules, ClientShare
from infergate.backends.request_queue import RequestQueue
from infergate.core.counters import BackendCounters
from infergate.core.errors import Kind
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RoutePolicy
from waiting import until


class Harness:
    """A queue for one request at a time, whose only slot is taken."""

    def __init__(self, max_waiting: int) -> None:
        self.counters = BackendCounters()
        self.queue = RequestQueue("b1", 1, max_waiting, self.counters)
        assert self.queue.try_enter()


async def _entry_order(harness: Harness, contexts: dict[str, RequestContext]) -> list[str]:
    """Return the names of ``contexts`` in the order in which their requests get the only slot."""
    order: list[str] = []

    async def enter(name: str, context: RequestContext) -> None:
        await harness.queue.enter(context)
        order.append(name)
        harness.queue.leave()

    tasks = [asyncio.ensure_future(enter(*each)) for each in contexts.items()]
    await until(lambda: harness.counters.queued == len(tasks))
    harness.queue.leave()
    await asyncio.gather(*tasks)
    return order


def waiting_call(**fields: Any) -> RequestContext:
    return new_context(deadline=time.monotonic() + 60, **fields)


async def test_the_header_precedes_the_parameter_and_the_route() -> None:
    header, route = {"infergate-priority": "3"}, RoutePolicy(priority=4)
    contexts = {
        "default": waiting_call(),
        "route": waiting_call(policy=route),
        "low parameter": waiting_call(policy=route, priority=8),
        "header": waiting_call(policy=route, priority=8, headers=header),
        "other header": waiting_call(headers={"priority": "1"}),
        "invalid header": waiting_call(headers={"infergate-priority": "-1"}, priority=2),
    }
    assert await _entry_order(Harness(9), contexts) == [
        "invalid header", "header", "route", "default", "other header", "low parameter",
    ]  # fmt: skip


async def test_a_client_gets_no_higher_priority_than_its_share_allows() -> None:
    shares = [ClientShare(("key:a",), highest_priority=6)]
    permit = AccessRules([AccessRule(("*",))], shares).permit_for("key:a")
    contexts = {
        "limited": waiting_call(permit=permit, priority=1),
        "lower": waiting_call(permit=permit, priority=9),
        "default": waiting_call(),
    }
    assert await _entry_order(Harness(9), contexts) == ["default", "limited", "lower"]


async def _displace_request(harness: Harness) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """Start a request with a low priority, and a request that will displace it."""
    low = asyncio.ensure_future(harness.queue.enter(waiting_call(priority=7)))
    await until(lambda: harness.counters.queued == 1)
    return low, asyncio.ensure_future(harness.queue.enter(waiting_call(priority=2)))


async def test_a_displaced_request_is_refused_and_counted() -> None:
    harness = Harness(1)
    queue = harness.queue
    low, high = await _displace_request(harness)
    with raises_kind(Kind.OVERLOADED, match="its queue of 1 is full"):
        await low
    assert harness.counters.queued_by_priority == {7: 0, 2: 1}
    assert (harness.counters.queue_rejected, harness.counters.shed_by_priority) == (1, {7: 1})
    queue.leave()
    await high
    queue.leave()
    assert queue.stats == ("b1", 0, 1)


async def test_a_request_cancelled_while_it_is_displaced_takes_no_slot() -> None:
    harness = Harness(1)
    queue = harness.queue
    low, high = await _displace_request(harness)
    asyncio.get_running_loop().call_soon(low.cancel)
    await asyncio.gather(low, return_exceptions=True)
    queue.leave()
    await high
    queue.leave()
    assert queue.stats == ("b1", 0, 1)


async def test_a_free_slot_is_taken_without_reading_the_request() -> None:
    queue = Harness(1).queue
    queue.leave()
    await queue.enter(None)  # type: ignore[arg-type]
    assert queue.stats == ("b1", 1, 1)


async def test_clients_without_an_identity_are_distinguished_by_address() -> None:
    contexts = {
        f"{peer} {number}": RequestContext(peer, time.monotonic() + 60)
        for peer in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1")
        for number in range(2)
    }
    assert await _entry_order(Harness(9), contexts) == [
        "10.0.0.1:1 0", "10.0.0.2:1 0", "10.0.0.1:2 0", "10.0.0.2:1 1", "10.0.0.1:1 1",
        "10.0.0.1:2 1",
    ]  # fmt: skip
