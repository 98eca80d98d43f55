"""Retries, hedging and the queue of requests, with a scripted transport."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends import attempts
from infergate.backends.attempts import SenderState
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.endpoints import BalanceSettings, ConfiguredEndpoint, Endpoints
from infergate.backends.message_access import RPC_MESSAGES
from infergate.backends.request_queue import RequestQueue
from infergate.backends.request_sender import RequestSender
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import HedgePolicy, RetryPolicy, RoutePolicy
from infergate.core.sequences import SequenceKey
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.routing.budget import RetryBudget
from infergate.transport.base import Endpoint
from reference_cycles import garbage_collector_disabled
from waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

A, B, C = Endpoint("a", 1), Endpoint("b", 2), Endpoint("c", 3)
OK, DECLINED, REFUSED = RpcResponse(), RpcResponse(code=14, details="not now"), RpcResponse(code=3)
IDEMPOTENT = RetryPolicy(is_idempotent=True)
Result = RpcResponse | Kind | float
"""A response, the kind of an error to raise, or the seconds after which to return OK."""


class FakeUpstream:
    """Returns or raises ``results`` in order, then returns OK."""

    def __init__(self, *results: Result) -> None:
        self.results = list(results)
        self.requests: list[str] = []
        self.timeouts: list[float] = []
        self.cancelled: list[str] = []

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.requests.append(endpoint.host)
        self.timeouts.append(timeout)
        result = self.results.pop(0) if self.results else OK
        if isinstance(result, float):
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.sleep(result)
            except TimeoutError:
                raise GatewayError(Kind.TIMEOUT, "too slow") from None
            except asyncio.CancelledError:
                self.cancelled.append(endpoint.host)
                raise
            return OK
        await asyncio.sleep(0)
        if isinstance(result, Kind):
            raise GatewayError(result, result.value, detail=endpoint.host)
        return result

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        yield await self.exchange(wire, endpoint, 60.0 if timeout is None else timeout)
        if self.results and self.results[0] is Kind.BACKEND_GARBAGE:
            raise GatewayError(Kind.BACKEND_GARBAGE, "broke off")

    async def close(self) -> None: ...


class Harness:
    def __init__(
        self,
        *results: Result,
        endpoints: tuple[Endpoint, ...] = (A, B),
        budget: RetryBudget | None = None,
        queue_limits: tuple[int, int] | None = None,
    ) -> None:
        self.upstream = FakeUpstream(*results)
        self.counters = BackendCounters()
        self.budget = budget or RetryBudget()
        self.queue = (
            None if queue_limits is None else RequestQueue("b1", *queue_limits, self.counters)
        )
        self.sender: RequestSender[RpcRequest, RpcResponse] = RequestSender(
            BackendSettings("b1", ()),
            SenderState(
                Endpoints(
                    "b1",
                    [ConfiguredEndpoint(each, str(each)) for each in endpoints],
                    BalanceSettings("round-robin"),
                    random_float=lambda: 0.0,
                ),
                self.budget,
                self.queue,
                self.counters,
            ),
            self.upstream,
            RPC_MESSAGES,
        )

    async def send_request(
        self,
        policy: RetryPolicy,
        sequence: Any = None,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> RpcResponse:
        context = RequestContext("test", deadline, policy=RoutePolicy(timeout, policy))
        try:
            return await self.sender.infer(RpcRequest("/infer"), context, sequence)
        finally:
            assert (self.budget.active_requests, self.budget.active_retries) == (0, 0)

    def infer(self, **fields: Any) -> Awaitable[RpcResponse]:
        return self.sender.infer(RpcRequest("/x"), new_context(**fields))

    async def failure(self, kind: Kind, policy: RetryPolicy, sequence: Any = None) -> GatewayError:
        with raises_kind(kind) as caught:
            await self.send_request(policy, sequence)
        return caught.value


@pytest.fixture(autouse=True)
def backoffs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace ``backoff`` with a function that returns 0 and records its attempt numbers."""
    recorded: list[int] = []

    def backoff(attempt: int) -> float:
        recorded.append(attempt)
        return 0.0

    monkeypatch.setattr(attempts, "backoff", backoff)
    return recorded


async def test_unsent_requests_are_retried_immediately_elsewhere(backoffs: list[int]) -> None:
    harness = Harness(Kind.CONNECT, budget=RetryBudget(0.0, 0))
    assert await harness.send_request(RetryPolicy()) is OK
    assert harness.upstream.requests == ["a", "b"]
    assert backoffs == []
    assert harness.counters.retries == {"not_sent": 1}


async def test_a_single_endpoint_is_retried_after_a_backoff(backoffs: list[int]) -> None:
    harness = Harness(Kind.CONNECT, endpoints=(A,))
    assert await harness.send_request(RetryPolicy()) is OK
    assert (harness.upstream.requests, backoffs) == (["a", "a"], [1])


async def test_the_route_limits_the_number_of_retries(backoffs: list[int]) -> None:
    for max_retries in range(5):
        harness = Harness(*[Kind.CONNECT] * 10, endpoints=(A, B, C))
        error = await harness.failure(Kind.CONNECT, RetryPolicy(max_retries=max_retries))
        assert len(harness.upstream.requests) == max_retries + 1
        assert set(harness.upstream.requests[:3]) == {"a", "b", "c"} or max_retries < 2
        assert error.detail == harness.upstream.requests[-1]
        assert harness.counters.retries.total() == max_retries


@pytest.mark.parametrize("kind", [Kind.BACKEND_GARBAGE, Kind.TIMEOUT, Kind.TOO_LARGE])
async def test_requests_that_may_have_run_are_not_retried(kind: Kind) -> None:
    harness = Harness(kind)
    await harness.failure(kind, RetryPolicy(max_retries=3))
    assert harness.upstream.requests == ["a"]
    assert not harness.counters.retries


async def test_declined_requests_are_not_retried() -> None:
    harness = Harness(DECLINED)
    assert await harness.send_request(RetryPolicy(max_retries=3)) is DECLINED
    assert harness.upstream.requests == ["a"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [(Kind.BACKEND_GARBAGE, "broken"), (Kind.TIMEOUT, "timeout"), (DECLINED, "declined")],
)
async def test_idempotent_requests_are_retried(
    result: Result, reason: str, backoffs: list[int]
) -> None:
    harness = Harness(result)
    assert await harness.send_request(IDEMPOTENT) is OK
    assert (harness.upstream.requests, backoffs) == (["a", "b"], [1])
    assert harness.counters.retries == {reason: 1}


@pytest.mark.parametrize("result", [Kind.TOO_LARGE, Kind.BAD_REQUEST, REFUSED])
async def test_permanent_errors_are_not_retried(result: Result) -> None:
    harness = Harness(result)
    if isinstance(result, Kind):
        await harness.failure(result, IDEMPOTENT)
    else:
        assert await harness.send_request(IDEMPOTENT) is result
    assert harness.upstream.requests == ["a"]


async def test_the_latest_failure_is_reported() -> None:
    harness = Harness(Kind.BACKEND_GARBAGE, DECLINED)
    assert await harness.send_request(IDEMPOTENT) is DECLINED
    harness = Harness(DECLINED, Kind.BACKEND_GARBAGE)
    assert (await harness.failure(Kind.BACKEND_GARBAGE, IDEMPOTENT)).detail == "b"


@pytest.mark.parametrize("result", [Kind.BACKEND_GARBAGE, Kind.TIMEOUT, DECLINED])
async def test_sequence_requests_are_never_sent_twice(result: Result) -> None:
    harness = Harness(result)
    if isinstance(result, Kind):
        await harness.failure(result, IDEMPOTENT, SequenceKey("m", 1))
    else:
        assert await harness.send_request(IDEMPOTENT, SequenceKey("m", 1)) is result
    assert len(harness.upstream.requests) == 1


async def test_a_sequence_is_not_retried_elsewhere(backoffs: list[int]) -> None:
    harness = Harness(Kind.CONNECT, Kind.CONNECT)
    error = await harness.failure(Kind.CONNECT, RetryPolicy(), SequenceKey("m", 1))
    first, second = harness.upstream.requests
    assert first == second
    assert "which holds the state of sequence 1" in error.public
    assert backoffs == [1]


# ---- the budget and the deadline ---------------------------------------------------------------


async def test_retries_during_an_outage_stay_within_the_budget() -> None:
    harness = Harness(*[Kind.BACKEND_GARBAGE] * 1000)
    policy = RetryPolicy(max_retries=3, is_idempotent=True)
    calls = (harness.infer(policy=RoutePolicy(retry=policy)) for _ in range(100))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, GatewayError) for each in results)
    assert 100 < len(harness.upstream.requests) <= 100 + 20 * 3
    assert harness.counters.budget_exhausted >= 80
    assert (harness.budget.active_requests, harness.budget.active_retries) == (0, 0)


async def test_no_retry_is_sent_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "backoff", lambda attempt: 10.0)
    harness = Harness(Kind.BACKEND_GARBAGE)
    with raises_kind(Kind.BACKEND_GARBAGE):
        await harness.send_request(IDEMPOTENT, deadline=time.monotonic() + 5)
    assert not harness.counters.retries


async def test_an_unsent_request_is_not_sent_past_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadline = time.monotonic() + 60
    monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: deadline))
    harness = Harness(Kind.CONNECT, OK)
    with raises_kind(Kind.CONNECT):
        await harness.send_request(RetryPolicy(), deadline=deadline, timeout=90.0)
    assert len(harness.upstream.requests) == 1


async def test_per_try_timeouts_are_within_the_deadline() -> None:
    harness = Harness(5.0, 5.0, OK)
    policy = RetryPolicy(max_retries=2, is_idempotent=True, per_try_timeout=0.01)
    assert await harness.send_request(policy, timeout=30.0) is OK
    assert harness.upstream.timeouts == [0.01, 0.01, 0.01]
    harness = Harness(OK)
    # Unlike 0.005, 1/256 can be added exactly to a large clock value.
    assert await harness.send_request(policy, timeout=1 / 256) is OK
    assert harness.upstream.timeouts[0] <= 1 / 256


async def test_the_per_try_timeout_does_not_apply_to_sequences() -> None:
    harness = Harness(OK)
    policy = RetryPolicy(is_idempotent=True, per_try_timeout=0.01)
    assert await harness.send_request(policy, SequenceKey("m", 1)) is OK
    assert harness.upstream.timeouts[0] > 1


async def test_failed_messages_are_released() -> None:
    class Wire(RpcRequest):
        __slots__ = ("__weakref__",)

    async def fail_request(harness: Harness, policy: RetryPolicy) -> weakref.ref[Wire]:
        wire = Wire("/infer")
        with pytest.raises(GatewayError):
            await harness.sender.infer(
                wire, RequestContext("test", policy=RoutePolicy(retry=policy))
            )
        return weakref.ref(wire)

    with garbage_collector_disabled():
        hedged = RetryPolicy(is_idempotent=True, hedge=HedgePolicy(0.001))
        for policy in (RetryPolicy(), IDEMPOTENT, hedged):
            for kind in (Kind.BACKEND_GARBAGE, Kind.CONNECT):
                reference = await fail_request(Harness(*[kind] * 9), policy)
                await asyncio.sleep(0)
                assert reference() is None


# ---- streams -----------------------------------------------------------------------------------


async def read_stream(harness: Harness, policy: RetryPolicy) -> list[RpcResponse]:
    context = RequestContext("test", policy=RoutePolicy(retry=policy))
    return [each async for each in harness.sender.stream(RpcRequest("/stream"), context, None)]


@pytest.mark.parametrize("result", [Kind.CONNECT, Kind.BACKEND_GARBAGE, Kind.TIMEOUT, DECLINED])
async def test_a_stream_is_retried_before_its_first_message(result: Result) -> None:
    harness = Harness(result)
    assert await read_stream(harness, IDEMPOTENT) == [OK]
    assert harness.upstream.requests == ["a", "b"]
    assert (harness.budget.active_requests, harness.budget.active_retries) == (0, 0)


async def test_the_rejection_of_a_repeatedly_declined_stream_is_returned() -> None:
    harness = Harness(DECLINED, DECLINED)
    assert await read_stream(harness, IDEMPOTENT) == [DECLINED]


async def test_a_started_stream_is_not_retried() -> None:
    harness = Harness(OK, Kind.BACKEND_GARBAGE)
    with pytest.raises(GatewayError, match="broke off"):
        await read_stream(harness, IDEMPOTENT)
    assert harness.upstream.requests == ["a"]


async def test_the_per_try_timeout_applies_to_a_streams_first_message() -> None:
    harness = Harness(5.0)
    assert await read_stream(harness, RetryPolicy(is_idempotent=True, per_try_timeout=0.01)) == [OK]
    assert harness.upstream.requests == ["a", "b"]
    assert harness.upstream.cancelled == ["a"]


async def test_a_stream_is_not_hedged() -> None:
    harness = Harness(0.02)
    policy = RetryPolicy(is_idempotent=True, hedge=HedgePolicy(0.001))
    assert await read_stream(harness, policy) == [OK]
    assert harness.upstream.requests == ["a"]


# ---- hedging -----------------------------------------------------------------------------------

SLOW = 5.0


def hedging(**hedge: float) -> RetryPolicy:
    return RetryPolicy(is_idempotent=True, hedge=HedgePolicy(**hedge))


async def test_a_hedge_wins_and_the_slow_attempt_is_cancelled() -> None:
    harness = Harness(SLOW)
    assert await harness.send_request(hedging(after_seconds=0.01)) is OK
    assert harness.upstream.requests == ["a", "b"]
    assert harness.upstream.cancelled == ["a"]
    assert (harness.counters.hedges_won, harness.counters.hedges_lost) == (1, 0)


async def test_a_hedge_loses_and_is_cancelled() -> None:
    harness = Harness(0.05, SLOW)
    assert await harness.send_request(hedging(after_seconds=0.01)) is OK
    assert harness.upstream.cancelled == ["b"]
    assert (harness.counters.hedges_won, harness.counters.hedges_lost) == (0, 1)


async def test_a_failed_hedge_is_ignored() -> None:
    for result in (Kind.BACKEND_GARBAGE, DECLINED):
        harness = Harness(0.05, result)
        assert await harness.send_request(hedging(after_seconds=0.01)) is OK
        assert harness.counters.hedges_lost == 1


async def test_if_a_hedge_fails_too_the_first_attempts_error_is_reported() -> None:
    harness = Harness(SLOW, Kind.BACKEND_GARBAGE)
    policy = RetryPolicy(0, is_idempotent=True, per_try_timeout=0.05, hedge=HedgePolicy(0.01))
    await harness.failure(Kind.TIMEOUT, policy)


async def test_fast_requests_are_not_hedged() -> None:
    harness = Harness(OK)
    assert await harness.send_request(hedging(after_seconds=1.0)) is OK
    assert harness.upstream.requests == ["a"]
    assert (harness.counters.hedges_won, harness.counters.hedges_lost) == (0, 0)


async def test_no_hedge_is_sent_without_another_endpoint_or_budget() -> None:
    for harness in (Harness(0.03, endpoints=(A,)), Harness(0.03, budget=RetryBudget(0.0, 0))):
        assert await harness.send_request(hedging(after_seconds=0.01)) is OK
        assert harness.upstream.requests == ["a"]
    assert harness.counters.budget_exhausted == 1


async def test_a_sequence_is_not_hedged() -> None:
    harness = Harness(0.03)
    assert await harness.send_request(hedging(after_seconds=0.01), SequenceKey("m", 1)) is OK
    assert len(harness.upstream.requests) == 1


async def test_hedging_by_percentile_needs_samples() -> None:
    harness = Harness()
    policy = hedging(percentile=0.95)
    for _ in range(60):
        harness.upstream.results = [0.001, 0.001]  # the latest requests may be hedged
        await harness.send_request(policy)
    harness.upstream.results = [SLOW]
    harness.upstream.requests.clear()
    harness.upstream.cancelled.clear()
    assert await harness.send_request(policy) is OK
    assert len(harness.upstream.requests) == 2
    assert harness.upstream.cancelled == harness.upstream.requests[:1]


async def test_a_disconnect_cancels_both_attempts() -> None:
    harness = Harness(SLOW, SLOW)
    pending = asyncio.ensure_future(harness.send_request(hedging(after_seconds=0.001)))
    await until(lambda: len(harness.upstream.requests) == 2)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert sorted(harness.upstream.cancelled) == ["a", "b"]
    assert (harness.budget.active_requests, harness.budget.active_retries) == (0, 0)


# ---- the queue ---------------------------------------------------------------------------------


async def test_requests_beyond_the_limit_wait_and_beyond_the_queue_are_rejected() -> None:
    harness = Harness(0.02, 0.02, 0.02, queue_limits=(1, 2))
    pending = [asyncio.ensure_future(harness.infer()) for _ in range(3)]
    await until(lambda: harness.counters.queued == 2)
    assert harness.upstream.requests == ["a"]
    assert harness.queue is not None
    assert harness.queue.stats == ("b1", 1, 1)
    with raises_kind(Kind.OVERLOADED) as caught:
        await harness.infer()
    assert caught.value.retry_after == 1.0
    assert await asyncio.gather(*pending) == [OK] * 3
    assert (harness.counters.queued, harness.counters.queue_rejected) == (0, 1)
    assert sum(harness.counters.queue_wait.counts) == 2, "the first request did not wait"
    assert harness.counters.queue_wait.sum > 0
    assert harness.queue.stats == ("b1", 0, 1)


async def test_a_request_that_times_out_in_the_queue_leaves_it() -> None:
    harness = Harness(SLOW, queue_limits=(1, 2))
    first = asyncio.ensure_future(harness.infer())
    await until(lambda: harness.upstream.requests == ["a"])
    with raises_kind(Kind.TIMEOUT, match="the request waited in the queue"):
        await harness.infer(policy=RoutePolicy(0.01))
    assert (harness.counters.queued, harness.counters.queue_expired) == (0, 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await harness.infer() is OK


async def test_a_caller_cancelled_in_the_queue_takes_no_slot() -> None:
    harness = Harness(SLOW, queue_limits=(1, 9))
    first, second, third = (asyncio.ensure_future(harness.infer()) for _ in range(3))
    await until(lambda: harness.counters.queued == 2)
    second.cancel()
    first.cancel()  # the slot passes to the second, which is being cancelled, and then to the third
    await asyncio.gather(first, second, return_exceptions=True)
    assert await third is OK
    assert await harness.infer() is OK


async def test_requests_other_than_inferences_do_not_queue() -> None:
    harness = Harness(SLOW, queue_limits=(1, 0))
    first = asyncio.ensure_future(harness.infer())
    await until(lambda: harness.upstream.requests == ["a"])
    assert await harness.sender.exchange(RpcRequest("/ready"), new_context()) is OK
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_keeps_its_slot_until_it_ends() -> None:
    harness = Harness(OK, queue_limits=(1, 0))
    messages = harness.sender.stream(RpcRequest("/s"), new_context(), None)
    assert await anext(messages) is OK
    with raises_kind(Kind.OVERLOADED):
        await harness.infer()
    await messages.aclose()
    assert await harness.infer() is OK


async def test_a_hedge_takes_a_slot_or_is_not_sent() -> None:
    harness = Harness(0.03, queue_limits=(1, 0))
    assert await harness.send_request(hedging(after_seconds=0.01)) is OK
    assert harness.upstream.requests == ["a"]
    harness = Harness(SLOW, queue_limits=(2, 0))
    assert await harness.send_request(hedging(after_seconds=0.01)) is OK
    assert harness.upstream.requests == ["a", "b"]
    for _ in range(3):  # both slots are free again
        assert await harness.send_request(hedging(after_seconds=1.0)) is OK
