"""What is tried again, where, how often and when; over a transport that does what the test says."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from infergate.backends import attempts
from infergate.backends.attempts import SenderState
from infergate.backends.endpoints import BalanceSettings, Endpoints
from infergate.backends.endpoints import ConfiguredEndpoint as Place
from infergate.backends.header_filter import HeaderFilter
from infergate.backends.message_access import RPC_MESSAGES
from infergate.backends.request_queue import RequestQueue
from infergate.backends.request_sender import RequestSender, SenderSettings
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import HedgePolicy, RetryPolicy, RoutePolicy
from infergate.core.sequences import SequenceKey
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.routing.budget import RetryBudget
from infergate.transport.base import Endpoint

A, B, C = Endpoint("a", 1), Endpoint("b", 2), Endpoint("c", 3)
OK, DECLINES, REFUSES = RpcResponse(), RpcResponse(code=14, details="not now"), RpcResponse(code=3)
IDEMPOTENT = RetryPolicy(is_idempotent=True)
Answer = RpcResponse | Kind | float
"""What is answered, raised, or how many seconds it takes to say OK."""


class FakeUpstream:
    """Answers in turn, then OK."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self.cancelled: list[str] = []

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.asked.append(endpoint.host)
        self.timeouts.append(timeout)
        answer = self.answers.pop(0) if self.answers else OK
        if isinstance(answer, float):
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.sleep(answer)
            except TimeoutError:
                raise GatewayError(Kind.TIMEOUT, "too slow") from None
            except asyncio.CancelledError:
                self.cancelled.append(endpoint.host)
                raise
            return OK
        await asyncio.sleep(0)
        if isinstance(answer, Kind):
            raise GatewayError(answer, answer.value, detail=endpoint.host)
        return answer

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        yield await self.exchange(wire, endpoint, 60.0 if timeout is None else timeout)
        if self.answers and self.answers[0] is Kind.BACKEND_GARBAGE:
            raise GatewayError(Kind.BACKEND_GARBAGE, "broke off")

    async def close(self) -> None: ...


class Site:
    def __init__(
        self,
        *answers: Answer,
        endpoints: tuple[Endpoint, ...] = (A, B),
        budget: RetryBudget | None = None,
        places: tuple[int, int] | None = None,
    ) -> None:
        self.upstream = FakeUpstream(*answers)
        self.tally = BackendCounters()
        self.budget = budget or RetryBudget()
        self.queue = None if places is None else RequestQueue("b1", *places, self.tally)
        self.sending: RequestSender[RpcRequest, RpcResponse] = RequestSender(
            SenderSettings("b1", 30.0, HeaderFilter(()), HeaderFilter(())),
            SenderState(
                Endpoints(
                    "b1",
                    [Place(each, str(each)) for each in endpoints],
                    BalanceSettings("round-robin"),
                    random_float=lambda: 0.0,
                ),
                self.budget,
                self.queue,
                self.tally,
            ),
            self.upstream,
            RPC_MESSAGES,
        )

    async def ask(
        self,
        policy: RetryPolicy,
        sequence: Any = None,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> RpcResponse:
        context = RequestContext("test", deadline, policy=RoutePolicy(timeout, policy))
        try:
            return await self.sending.infer(RpcRequest("/infer"), context, sequence)
        finally:
            assert (self.budget.active_requests, self.budget.active_retries) == (0, 0)

    async def fails(self, kind: Kind, policy: RetryPolicy, sequence: Any = None) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            await self.ask(policy, sequence)
        assert caught.value.kind is kind
        return caught.value


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After how many tries there was a back-off, which takes no time here."""
    waited: list[int] = []

    def backoff(tries: int) -> float:
        waited.append(tries)
        return 0.0

    monkeypatch.setattr(attempts, "backoff", backoff)
    return waited


async def test_what_was_not_sent_goes_to_another_endpoint_at_once(waits: list[int]) -> None:
    site = Site(Kind.CONNECT, budget=RetryBudget(0.0, 0))
    assert await site.ask(RetryPolicy()) is OK
    assert site.upstream.asked == ["a", "b"]
    assert waits == []
    assert site.tally.retries == {"not_sent": 1}


async def test_a_lone_endpoint_is_asked_again_after_a_while(waits: list[int]) -> None:
    site = Site(Kind.CONNECT, endpoints=(A,))
    assert await site.ask(RetryPolicy()) is OK
    assert (site.upstream.asked, waits) == (["a", "a"], [1])


async def test_no_more_tries_than_the_route_wants(waits: list[int]) -> None:
    for times in range(5):
        site = Site(*[Kind.CONNECT] * 10, endpoints=(A, B, C))
        error = await site.fails(Kind.CONNECT, RetryPolicy(max_retries=times))
        assert len(site.upstream.asked) == times + 1
        assert set(site.upstream.asked[:3]) == {"a", "b", "c"} or times < 2
        assert error.detail == site.upstream.asked[-1]
        assert site.tally.retries.total() == times


@pytest.mark.parametrize("kind", [Kind.BACKEND_GARBAGE, Kind.TIMEOUT, Kind.TOO_LARGE])
async def test_what_may_have_been_carried_out_is_not_sent_again(kind: Kind) -> None:
    site = Site(kind)
    await site.fails(kind, RetryPolicy(max_retries=3))
    assert site.upstream.asked == ["a"]
    assert not site.tally.retries


async def test_nor_what_was_declined() -> None:
    site = Site(DECLINES)
    assert await site.ask(RetryPolicy(max_retries=3)) is DECLINES
    assert site.upstream.asked == ["a"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(Kind.BACKEND_GARBAGE, "broken"), (Kind.TIMEOUT, "timeout"), (DECLINES, "declined")],
)
async def test_unless_it_may_be_carried_out_twice(
    answer: Answer, reason: str, waits: list[int]
) -> None:
    site = Site(answer)
    assert await site.ask(IDEMPOTENT) is OK
    assert (site.upstream.asked, waits) == (["a", "b"], [1])
    assert site.tally.retries == {reason: 1}


@pytest.mark.parametrize("answer", [Kind.TOO_LARGE, Kind.BAD_REQUEST, REFUSES])
async def test_what_would_fail_again_is_not_tried_again(answer: Answer) -> None:
    site = Site(answer)
    if isinstance(answer, Kind):
        await site.fails(answer, IDEMPOTENT)
    else:
        assert await site.ask(IDEMPOTENT) is answer
    assert site.upstream.asked == ["a"]


async def test_the_latest_failure_is_told() -> None:
    site = Site(Kind.BACKEND_GARBAGE, DECLINES)
    assert await site.ask(IDEMPOTENT) is DECLINES
    site = Site(DECLINES, Kind.BACKEND_GARBAGE)
    assert (await site.fails(Kind.BACKEND_GARBAGE, IDEMPOTENT)).detail == "b"


@pytest.mark.parametrize("answer", [Kind.BACKEND_GARBAGE, Kind.TIMEOUT, DECLINES])
async def test_nothing_of_a_sequence_is_sent_twice(answer: Answer) -> None:
    site = Site(answer)
    if isinstance(answer, Kind):
        await site.fails(answer, IDEMPOTENT, SequenceKey("m", 1))
    else:
        assert await site.ask(IDEMPOTENT, SequenceKey("m", 1)) is answer
    assert len(site.upstream.asked) == 1


async def test_a_sequence_goes_to_no_other_endpoint(waits: list[int]) -> None:
    site = Site(Kind.CONNECT, Kind.CONNECT)
    error = await site.fails(Kind.CONNECT, RetryPolicy(), SequenceKey("m", 1))
    first, second = site.upstream.asked
    assert first == second
    assert "which holds the state of sequence 1" in error.public
    assert waits == [1]


# ---- the budget and the deadline ---------------------------------------------------------------


async def test_an_outage_is_sent_the_budget_and_no_more() -> None:
    site = Site(*[Kind.BACKEND_GARBAGE] * 1000)
    policy = RetryPolicy(max_retries=3, is_idempotent=True)
    calls = [RequestContext("test", policy=RoutePolicy(retry=policy)) for _ in range(100)]
    told = await asyncio.gather(
        *(site.sending.infer(RpcRequest("/infer"), call) for call in calls),
        return_exceptions=True,
    )
    assert all(isinstance(each, GatewayError) for each in told)
    assert 100 < len(site.upstream.asked) <= 100 + 20 * 3
    assert site.tally.budget_exhausted >= 80
    assert (site.budget.active_requests, site.budget.active_retries) == (0, 0)


async def test_a_try_that_would_pass_the_deadline_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "backoff", lambda tries: 10.0)
    site = Site(Kind.BACKEND_GARBAGE)
    with pytest.raises(GatewayError) as caught:
        await site.ask(IDEMPOTENT, deadline=time.monotonic() + 5)
    assert caught.value.kind is Kind.BACKEND_GARBAGE
    assert not site.tally.retries


async def test_each_try_has_its_own_time_within_the_whole() -> None:
    site = Site(5.0, 5.0, OK)
    policy = RetryPolicy(max_retries=2, is_idempotent=True, per_try_timeout=0.01)
    assert await site.ask(policy, timeout=30.0) is OK
    assert site.upstream.timeouts == [0.01, 0.01, 0.01]
    site = Site(OK)
    assert await site.ask(policy, timeout=0.005) is OK
    assert site.upstream.timeouts[0] <= 0.005


async def test_a_try_s_own_time_is_for_what_may_be_sent_again() -> None:
    site = Site(OK)
    policy = RetryPolicy(is_idempotent=True, per_try_timeout=0.01)
    assert await site.ask(policy, SequenceKey("m", 1)) is OK
    assert site.upstream.timeouts[0] > 1


async def test_no_message_is_kept_once_it_has_failed() -> None:
    class Wire(RpcRequest):
        __slots__ = ("__weakref__",)

    async def failing(site: Site, policy: RetryPolicy) -> weakref.ref[Wire]:
        wire = Wire("/infer")
        with pytest.raises(GatewayError):
            await site.sending.infer(wire, RequestContext("test", policy=RoutePolicy(retry=policy)))
        return weakref.ref(wire)

    gc.collect()
    gc.disable()
    try:
        hedged = RetryPolicy(is_idempotent=True, hedge=HedgePolicy(0.001))
        for policy in (RetryPolicy(), IDEMPOTENT, hedged):
            for kind in (Kind.BACKEND_GARBAGE, Kind.CONNECT):
                kept = await failing(Site(*[kind] * 9), policy)
                await asyncio.sleep(0)
                assert kept() is None
    finally:
        gc.enable()


# ---- streams -----------------------------------------------------------------------------------


async def pulled(site: Site, policy: RetryPolicy) -> list[RpcResponse]:
    context = RequestContext("test", policy=RoutePolicy(retry=policy))
    return [each async for each in site.sending.stream(RpcRequest("/stream"), context, None)]


@pytest.mark.parametrize("answer", [Kind.CONNECT, Kind.BACKEND_GARBAGE, Kind.TIMEOUT, DECLINES])
async def test_a_stream_is_tried_again_before_its_first_message(answer: Answer) -> None:
    site = Site(answer)
    assert await pulled(site, IDEMPOTENT) == [OK]
    assert site.upstream.asked == ["a", "b"]
    assert (site.budget.active_requests, site.budget.active_retries) == (0, 0)


async def test_a_stream_that_is_declined_to_the_end_says_so() -> None:
    site = Site(DECLINES, DECLINES)
    assert await pulled(site, IDEMPOTENT) == [DECLINES]


async def test_a_stream_that_has_begun_is_not_tried_again() -> None:
    site = Site(OK, Kind.BACKEND_GARBAGE)
    with pytest.raises(GatewayError, match="broke off"):
        await pulled(site, IDEMPOTENT)
    assert site.upstream.asked == ["a"]


async def test_a_stream_s_first_message_has_a_try_s_time() -> None:
    site = Site(5.0)
    assert await pulled(site, RetryPolicy(is_idempotent=True, per_try_timeout=0.01)) == [OK]
    assert site.upstream.asked == ["a", "b"]
    assert site.upstream.cancelled == ["a"]


async def test_a_stream_is_not_hedged() -> None:
    site = Site(0.02)
    policy = RetryPolicy(is_idempotent=True, hedge=HedgePolicy(0.001))
    assert await pulled(site, policy) == [OK]
    assert site.upstream.asked == ["a"]


# ---- hedging -----------------------------------------------------------------------------------

SLOW = 5.0


def hedging(**hedge: float) -> RetryPolicy:
    return RetryPolicy(is_idempotent=True, hedge=HedgePolicy(**hedge))


async def test_a_hedge_wins_and_the_slow_try_is_cancelled() -> None:
    site = Site(SLOW)
    assert await site.ask(hedging(after_seconds=0.01)) is OK
    assert site.upstream.asked == ["a", "b"]
    assert site.upstream.cancelled == ["a"]
    assert (site.tally.hedges_won, site.tally.hedges_lost) == (1, 0)


async def test_a_hedge_loses_and_is_cancelled() -> None:
    site = Site(0.05, SLOW)
    assert await site.ask(hedging(after_seconds=0.01)) is OK
    assert site.upstream.cancelled == ["b"]
    assert (site.tally.hedges_won, site.tally.hedges_lost) == (0, 1)


async def test_a_hedge_that_fails_is_not_the_answer() -> None:
    for bad in (Kind.BACKEND_GARBAGE, DECLINES):
        site = Site(0.05, bad)
        assert await site.ask(hedging(after_seconds=0.01)) is OK
        assert site.tally.hedges_lost == 1


async def test_where_both_fail_the_first_one_is_told() -> None:
    site = Site(SLOW, Kind.BACKEND_GARBAGE)
    policy = RetryPolicy(0, is_idempotent=True, per_try_timeout=0.05, hedge=HedgePolicy(0.01))
    await site.fails(Kind.TIMEOUT, policy)


async def test_what_is_fast_is_not_hedged() -> None:
    site = Site(OK)
    assert await site.ask(hedging(after_seconds=1.0)) is OK
    assert site.upstream.asked == ["a"]
    assert (site.tally.hedges_won, site.tally.hedges_lost) == (0, 0)


async def test_there_is_no_hedge_without_another_endpoint_or_a_budget() -> None:
    for site in (Site(0.03, endpoints=(A,)), Site(0.03, budget=RetryBudget(0.0, 0))):
        assert await site.ask(hedging(after_seconds=0.01)) is OK
        assert site.upstream.asked == ["a"]
    assert site.tally.budget_exhausted == 1


async def test_a_sequence_is_not_hedged() -> None:
    site = Site(0.03)
    assert await site.ask(hedging(after_seconds=0.01), SequenceKey("m", 1)) is OK
    assert len(site.upstream.asked) == 1


async def test_a_percentile_is_learnt_first() -> None:
    site = Site(*[0.001] * 60, SLOW)
    policy = hedging(percentile=0.95)
    for _ in range(60):
        await site.ask(policy)
    before = site.upstream.asked.count("a") + site.upstream.asked.count("b")
    assert await site.ask(policy) is OK
    assert len(site.upstream.asked) >= before + 2
    assert len(site.upstream.cancelled) >= 1


async def test_who_goes_away_cancels_both() -> None:
    site = Site(SLOW, SLOW)
    asking = asyncio.ensure_future(site.ask(hedging(after_seconds=0.001)))
    await until(lambda: len(site.upstream.asked) == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sorted(site.upstream.cancelled) == ["a", "b"]
    assert (site.budget.active_requests, site.budget.active_retries) == (0, 0)


# ---- the queue ---------------------------------------------------------------------------------


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not met():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_who_finds_no_place_waits_and_who_finds_no_room_is_refused() -> None:
    site = Site(0.02, 0.02, 0.02, places=(1, 2))
    asking = [asyncio.ensure_future(site.sending.infer(RpcRequest("/x"), call())) for _ in range(3)]
    await until(lambda: site.tally.queued == 2)
    assert site.upstream.asked == ["a"]
    assert site.queue is not None
    assert site.queue.stats == ("b1", 1, 1)
    with pytest.raises(GatewayError) as caught:
        await site.sending.infer(RpcRequest("/x"), call())
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.retry_after == 1.0
    assert await asyncio.gather(*asking) == [OK] * 3
    assert (site.tally.queued, site.tally.queue_rejected) == (0, 1)
    assert sum(site.tally.queue_wait.counts) == 2, "the first did not have to"
    assert site.tally.queue_wait.sum > 0
    assert site.queue.stats == ("b1", 0, 1)


def call(**fields: Any) -> RequestContext:
    return RequestContext("test", **fields)


async def test_who_waits_too_long_is_told_so_and_leaves() -> None:
    site = Site(SLOW, places=(1, 2))
    first = asyncio.ensure_future(site.sending.infer(RpcRequest("/x"), call()))
    await until(lambda: site.upstream.asked == ["a"])
    with pytest.raises(GatewayError, match="waiting in the queue") as caught:
        await site.sending.infer(RpcRequest("/x"), call(policy=RoutePolicy(0.01)))
    assert caught.value.kind is Kind.TIMEOUT
    assert (site.tally.queued, site.tally.queue_expired) == (0, 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await site.sending.infer(RpcRequest("/x"), call()) is OK


async def test_who_goes_away_while_it_waits_or_is_called_takes_no_place() -> None:
    site = Site(SLOW, places=(1, 9))
    first, second, third = (
        asyncio.ensure_future(site.sending.infer(RpcRequest("/x"), call())) for _ in range(3)
    )
    await until(lambda: site.tally.queued == 2)
    second.cancel()
    first.cancel()  # its place goes to the second, which is just going away, and on to the third
    await asyncio.gather(first, second, return_exceptions=True)
    assert await third is OK
    assert await site.sending.infer(RpcRequest("/x"), call()) is OK


async def test_questions_do_not_wait() -> None:
    site = Site(SLOW, places=(1, 0))
    first = asyncio.ensure_future(site.sending.infer(RpcRequest("/x"), call()))
    await until(lambda: site.upstream.asked == ["a"])
    assert await site.sending.exchange(RpcRequest("/ready"), call()) is OK
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_has_its_place_to_its_end() -> None:
    site = Site(OK, places=(1, 0))
    messages = site.sending.stream(RpcRequest("/s"), call(), None)
    assert await anext(messages) is OK
    with pytest.raises(GatewayError) as caught:
        await site.sending.infer(RpcRequest("/x"), call())
    assert caught.value.kind is Kind.OVERLOADED
    await messages.aclose()
    assert await site.sending.infer(RpcRequest("/x"), call()) is OK


async def test_a_hedge_takes_a_place_or_is_not_sent() -> None:
    site = Site(0.03, places=(1, 0))
    assert await site.ask(hedging(after_seconds=0.01)) is OK
    assert site.upstream.asked == ["a"]
    site = Site(SLOW, places=(2, 0))
    assert await site.ask(hedging(after_seconds=0.01)) is OK
    assert site.upstream.asked == ["a", "b"]
    for _ in range(3):  # both places are free again
        assert await site.ask(hedging(after_seconds=1.0)) is OK
