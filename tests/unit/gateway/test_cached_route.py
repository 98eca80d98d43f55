"""Routes whose responses are cached: hits, misses, collapsed requests, and invalidation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from threading import current_thread as current
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fakes import Memory

from contexts import new_context
from gateway_errors import raises_kind
from infergate.caching.local_store import LocalStore
from infergate.caching.response_cache import ResponseCache
from infergate.core.counters import RouteCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelUnloadRequest,
    RequestedOutput,
)
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.gateway import cached_route
from infergate.gateway.cached_route import CachedRoute, CachePolicy
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.server_control import ControlPermissions
from infergate.routing.table import Route, RouteTable
from memory_budget import Budget

X = Tensor("x", Datatype.UINT8, (3,), b"abc")
REQUEST = InferRequest("m", "", "id", {}, (X,))
RESPONSE = InferResponse("m", "1", "", {"p": 1}, (replace(X, name="y"),))


class Server:
    """The route behind the cache. With ``is_manual``, tests end inferences through ``pending``."""

    def __init__(self, is_manual: bool) -> None:
        self.contexts: list[RequestContext] = []
        self.pending: list[asyncio.Future[InferResponse]] = []
        self.response = RESPONSE
        self.is_manual = is_manual
        self.cancelled = 0
        self.backend = "own"
        self.headers = {"x-model": "1", "endpoint-load-metrics": "2"}

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self.contexts.append(context)
        context.record.backend = self.backend
        response = self.response
        if self.is_manual:
            pending = asyncio.get_running_loop().create_future()
            self.pending.append(pending)
            try:
                response = await pending
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        context.response_headers = {**context.response_headers, **self.headers}
        return replace(response, id=request.id)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        yield await self.infer(request, context)


class Harness:
    """A cached route on a simulated clock."""

    def __init__(self, *, is_manual: bool = False, **policy: Any) -> None:
        self.now = 1000.0
        self.server = Server(is_manual)
        self.store = LocalStore()
        self.store.set_max_bytes(1_000_000)
        self.cache = ResponseCache(self.store, 500_000, clock=lambda: self.now)
        self.counters = RouteCounters()
        fields: dict[str, Any] = {"scope": b"s", "backend": "own", "ttl": 60.0, **policy}
        self.route = CachedRoute(self.server, self.cache, CachePolicy(**fields), self.counters)

    async def infer(
        self, request: InferRequest = REQUEST, context: RequestContext | None = None, **headers: str
    ) -> InferResponse:
        return await self.route.infer(request, context or context_of(**headers))

    def start(
        self, request: InferRequest = REQUEST, context: RequestContext | None = None
    ) -> asyncio.Task[InferResponse]:
        return asyncio.create_task(self.infer(request, context))

    @property
    def calls(self) -> int:
        return len(self.server.contexts)


def context_of(**headers: str) -> RequestContext:
    return new_context(headers={name.replace("_", "-"): text for name, text in headers.items()})


def response_of(size: int) -> InferResponse:
    return replace(RESPONSE, outputs=(replace(X, shape=(size,), data=bytes(size)),))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_equal_inference_is_answered_from_the_cache_with_its_own_id() -> None:
    harness = Harness()
    first, context = context_of(), context_of()
    assert await harness.infer(context=first) == replace(RESPONSE, id="id")
    harness.now += 7.5
    assert await harness.infer(replace(REQUEST, id="2"), context) == replace(RESPONSE, id="2")
    assert harness.calls == 1
    assert harness.counters.cache == {"miss": 1, "hit": 1}
    assert first.response_headers == {
        "x-model": "1",
        "endpoint-load-metrics": "2",
        "cache-status": "infergate; fwd=miss; stored",
    }
    assert context.response_headers == {
        "x-model": "1",
        "cache-status": "infergate; hit; ttl=52",
        "age": "7",
    }
    assert (first.record.cache, context.record.cache) == ("miss", "hit")


async def test_a_response_is_used_until_its_ttl_has_passed() -> None:
    harness = Harness(ttl=10.0)
    await harness.infer()
    harness.now += 9.9
    await harness.infer()
    assert harness.calls == 1
    harness.now += 0.1
    await harness.infer()
    assert harness.calls == 2


async def test_a_different_inference_is_sent() -> None:
    harness = Harness()
    await harness.infer()
    await harness.infer(replace(REQUEST, inputs=(replace(X, data=b"abd"),)))
    assert harness.calls == 2


async def test_ignored_parameters_do_not_prevent_a_hit() -> None:
    harness = Harness(ignored=frozenset({"priority"}))
    await harness.infer()
    await harness.infer(replace(REQUEST, parameters={"priority": 1}))
    assert harness.calls == 1


async def test_clients_with_a_protocol_without_a_datatype_have_their_own_responses() -> None:
    harness = Harness()
    await harness.infer()
    await harness.infer(context=new_context(unsupported_datatypes=frozenset({Datatype.BF16})))
    assert harness.calls == 2


async def test_forwarded_headers_separate_responses() -> None:
    harness = Harness(forwarded=lambda headers: {"a": headers.get("a", "")})
    for headers in ({"a": "1"}, {"a": "2"}, {"a": "1", "b": "3"}):
        await harness.infer(**headers)
    assert harness.calls == 2


async def test_a_response_may_be_kept_only_at_the_second_use() -> None:
    harness = Harness(min_uses=2)
    statuses = []
    for _ in range(3):
        context = context_of()
        await harness.infer(context=context)
        statuses.append(context.response_headers["cache-status"])
    assert statuses == [
        "infergate; fwd=miss",
        "infergate; fwd=miss; stored",
        "infergate; hit; ttl=60",
    ]
    assert harness.counters.cache == {"miss": 2, "hit": 1}
    await harness.infer(replace(REQUEST, inputs=(replace(X, data=b"new"),)))
    assert harness.store.usage().entries == 1


class FakePermit:
    def __init__(self, identity: str) -> None:
        self.identity = identity

    def allows(self, operation: type, model: str) -> bool:
        return True


@pytest.mark.parametrize(("per_identity", "calls"), [(False, 1), (True, 2)])
async def test_identities_share_responses_unless_configured(per_identity: bool, calls: int) -> None:
    harness = Harness(per_identity=per_identity)
    for identity in ("key:a", "key:b", "key:a"):
        await harness.infer(context=new_context(permit=FakePermit(identity)))
    assert harness.calls == calls


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, parameters={"sequence_id": 7}),
        replace(REQUEST, inputs=(replace(X, data=b"", shared_memory=RegionRef("r", 0, 3)),)),
        replace(REQUEST, outputs=(RequestedOutput("y", shared_memory=RegionRef("r", 0, 3)),)),
        replace(REQUEST, parameters={"a": "x" * 100_000}),
    ],
)
async def test_sequences_shared_memory_and_large_parameters_bypass_the_cache(
    request_: InferRequest,
) -> None:
    harness = Harness()
    for _ in range(2):
        context = context_of()
        await harness.infer(request_, context)
        assert context.response_headers["cache-status"] == "infergate; fwd=bypass"
    assert harness.calls == 2
    assert harness.counters.cache == {"bypass": 2}
    assert harness.store.usage().entries == 0


async def test_streams_bypass_the_cache() -> None:
    harness = Harness()
    for _ in range(2):
        responses = [each async for each in harness.route.stream(REQUEST, context_of())]
        assert responses == [replace(RESPONSE, id="id")]
    assert harness.calls == 2
    assert harness.store.usage().entries == 0


async def test_a_no_store_request_neither_uses_nor_keeps_a_response() -> None:
    harness = Harness()
    await harness.infer(cache_control="max-age=5, No-Store")
    assert harness.store.usage().entries == 0
    await harness.infer()
    context = context_of(cache_control="no-store")
    await harness.infer(context=context)
    assert harness.calls == 3
    assert context.response_headers["cache-status"] == "infergate; fwd=request"


async def test_a_no_cache_request_is_sent_and_replaces_the_response() -> None:
    harness = Harness()
    await harness.infer()
    harness.server.response = replace(RESPONSE, parameters={"p": 2})
    context = context_of(cache_control="no-cache")
    assert (await harness.infer(context=context)).parameters == {"p": 2}
    assert context.response_headers["cache-status"] == "infergate; fwd=request; stored"
    assert (await harness.infer()).parameters == {"p": 2}
    assert harness.calls == 2


async def test_errors_are_not_kept() -> None:
    harness = Harness(is_manual=True)
    for _ in range(2):
        context = context_of()
        task = harness.start(context=context)
        await settle()
        harness.server.pending[-1].set_exception(GatewayError(Kind.BACKEND_ERROR, "no"))
        with raises_kind(Kind.BACKEND_ERROR):
            await task
        assert context.response_headers["cache-status"] == "infergate; fwd=miss"
    assert harness.calls == 2
    assert harness.counters.cache == {"miss": 2}


async def test_responses_of_a_fallback_are_not_kept() -> None:
    harness = Harness()
    harness.server.backend = "fallback"
    for _ in range(2):
        assert await harness.infer() == replace(RESPONSE, id="id")
    assert harness.calls == 2


async def test_responses_that_are_too_large_are_not_kept() -> None:
    harness = Harness()
    harness.server.response = response_of(600_000)
    for _ in range(2):
        assert (await harness.infer()).outputs == response_of(600_000).outputs
    assert harness.calls == 2


async def test_another_version_in_a_response_makes_older_responses_obsolete() -> None:
    harness = Harness()
    await harness.infer()
    other = replace(REQUEST, inputs=(replace(X, data=b"new"),))
    harness.server.response = replace(RESPONSE, version="2")
    await harness.infer(other)
    assert (await harness.infer()).version == "2"
    assert harness.calls == 3
    await harness.infer(other)
    await harness.infer(other)
    assert harness.calls == 4


async def test_a_worker_that_has_only_seen_hits_notices_another_version() -> None:
    harness = Harness()
    await harness.infer()
    policy = CachePolicy(b"s", "own", 60.0)
    worker = CachedRoute(harness.server, harness.cache, policy, harness.counters)
    assert (await worker.infer(REQUEST, context_of())).version == "1"
    harness.server.response = replace(RESPONSE, version="2")
    other = replace(REQUEST, inputs=(replace(X, data=b"new"),))
    assert (await worker.infer(other, context_of())).version == "2"
    assert (await harness.infer()).version == "2"


async def test_a_first_use_that_is_not_stored_notices_another_version() -> None:
    harness = Harness(min_uses=2)
    for calls in (1, 2, 2):
        assert (await harness.infer()).version == "1"
        assert harness.calls == calls
    harness.server.response = replace(RESPONSE, version="2")
    await harness.infer(replace(REQUEST, inputs=(replace(X, data=b"new"),)))
    assert (await harness.infer()).version == "2"


async def test_an_inference_that_began_before_an_invalidation_is_not_used_later() -> None:
    harness = Harness(is_manual=True)
    old = harness.start()
    await settle()
    await harness.cache.invalidate("own")
    new = harness.start()
    await settle()
    assert harness.calls == 2  # the new inference does not join the old one
    harness.server.pending[0].set_result(RESPONSE)
    await old
    harness.server.pending[1].set_result(replace(RESPONSE, parameters={"p": "new"}))
    await new
    assert (await harness.infer()).parameters == {"p": "new"}


# ---- collapsed requests


async def test_a_thousand_identical_concurrent_inferences_are_sent_once() -> None:
    harness = Harness(is_manual=True)
    contexts = [context_of() for _ in range(1000)]
    tasks = [
        harness.start(replace(REQUEST, id=str(number)), context)
        for number, context in enumerate(contexts)
    ]
    await settle()
    harness.server.pending[0].set_result(RESPONSE)
    responses = await asyncio.gather(*tasks)
    assert responses == [replace(RESPONSE, id=str(number)) for number in range(1000)]
    assert harness.calls == 1
    assert harness.counters.cache == {"miss": 1, "collapsed": 999}
    statuses = [context.response_headers["cache-status"] for context in contexts]
    assert statuses[0] == "infergate; fwd=miss; stored"
    assert set(statuses[1:]) == {"infergate; fwd=miss; collapsed"}


async def test_inferences_with_other_ignored_parameters_do_not_wait_for_each_other() -> None:
    harness = Harness(is_manual=True, ignored=frozenset({"timeout"}))
    first = harness.start(replace(REQUEST, parameters={"timeout": 1}))
    second = harness.start(replace(REQUEST, parameters={"timeout": 1000}))
    await settle()
    failing, succeeding = harness.server.pending
    failing.set_exception(GatewayError(Kind.BACKEND_ERROR, "too late"))
    succeeding.set_result(RESPONSE)
    with pytest.raises(GatewayError, match="too late"):
        await first
    assert (await second).outputs == RESPONSE.outputs
    third = harness.start(replace(REQUEST, parameters={"timeout": 1}))
    assert (await third).outputs == RESPONSE.outputs
    assert harness.calls == 2


async def test_an_error_is_returned_to_all_clients_that_wait() -> None:
    harness = Harness(is_manual=True)
    tasks = [harness.start() for _ in range(5)]
    await settle()
    harness.server.pending[0].set_exception(GatewayError(Kind.OVERLOADED, "no", retry_after=3.0))
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(type(e), getattr(e, "retry_after", None)) for e in errors] == [(GatewayError, 3.0)] * 5
    assert len(set(map(id, errors))) == 5
    assert harness.calls == 1


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (GatewayError(Kind.OVERLOADED, "the queue is full", retry_after=3.0), 2),
        (GatewayError(Kind.OVERLOADED, "memory", limit="in_flight_bytes"), 1),
        (GatewayError(Kind.OVERLOADED, "busy", origin=Origin.BACKEND), 1),
    ],
)
async def test_a_full_queue_of_one_client_does_not_fail_others(
    error: GatewayError, calls: int
) -> None:
    harness = Harness(is_manual=True)
    flood, others = (
        [harness.start(context=new_context(permit=FakePermit(name))) for _ in range(2)]
        for name in ("key:flood", "key:other")
    )
    await settle()
    harness.server.pending[0].set_exception(error)
    await settle()
    assert harness.calls == calls
    for task in flood:
        with raises_kind(Kind.OVERLOADED):
            await asyncio.wait_for(task, 5)
    if calls == 1:
        await asyncio.gather(*others, return_exceptions=True)
        return
    harness.server.pending[1].set_result(RESPONSE)
    assert await asyncio.gather(*others) == [replace(RESPONSE, id="id")] * 2


async def test_the_first_client_may_leave_while_others_wait() -> None:
    harness, account = Harness(is_manual=True), Budget(10_000)
    account.grow(1000)
    first = harness.start(context=new_context(memory=account))
    await settle()
    second = harness.start(replace(REQUEST, id="2"))
    await settle()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    inference_memory = harness.server.contexts[0].memory
    assert isinstance(inference_memory, Budget)
    assert inference_memory is not account
    assert (account.held, inference_memory.held) == (997, 3)  # the inference still holds the inputs
    assert not harness.server.cancelled
    harness.server.pending[0].set_result(RESPONSE)
    assert await second == replace(RESPONSE, id="2")
    await settle()
    assert inference_memory.held == 0
    assert harness.calls == 1


async def test_an_inference_ends_when_all_clients_have_left() -> None:
    harness = Harness(is_manual=True)
    tasks = [harness.start() for _ in range(3)]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    fourth = harness.start()  # does not join the inference that is ending
    await settle()
    assert harness.server.cancelled == 1
    harness.server.pending[1].set_result(RESPONSE)
    assert await fourth == replace(RESPONSE, id="id")
    await settle()
    assert not harness.route._tasks
    assert not harness.route._flights


async def test_each_client_that_waits_has_its_own_deadline() -> None:
    harness = Harness(is_manual=True)
    first = harness.start()
    await settle()
    second = harness.start(context=new_context(deadline=harness.now + 0.01))
    with raises_kind(Kind.TIMEOUT):
        await second
    harness.server.pending[0].set_result(RESPONSE)
    assert await first == replace(RESPONSE, id="id")


async def test_clients_with_time_left_send_one_inference_after_the_first_has_timed_out() -> None:
    harness = Harness(is_manual=True)
    first = harness.start(context=new_context(deadline=harness.now + 1))
    await settle()
    others = [harness.start(context=new_context(deadline=harness.now + 50)) for _ in range(3)]
    short = harness.start(context=new_context(deadline=harness.now + 1))
    await settle()
    harness.now += 1
    harness.server.pending[0].set_exception(GatewayError(Kind.TIMEOUT, "late"))
    await settle()
    for task in (first, short):
        with raises_kind(Kind.TIMEOUT):
            await task
    assert harness.calls == 2
    harness.server.pending[1].set_result(RESPONSE)
    assert await asyncio.gather(*others) == [replace(RESPONSE, id="id")] * 3


async def test_the_timeout_of_the_backend_counts_from_the_arrival_of_each_client() -> None:
    harness = Harness(is_manual=True, timeout=1.0)
    tasks = [harness.start() for _ in range(3)]
    await settle()
    harness.now += 0.5
    later = harness.start()
    await settle()
    harness.now += 0.5
    harness.server.contexts[0].deadline = harness.now  # the backend's timeout
    harness.server.pending[0].set_exception(GatewayError(Kind.TIMEOUT, "late"))
    await settle()
    for task in tasks:
        with raises_kind(Kind.TIMEOUT):
            await asyncio.wait_for(task, 5)
    assert harness.calls == 2
    assert harness.server.contexts[1].deadline == harness.now + 0.5
    harness.server.pending[1].set_result(RESPONSE)
    assert await later == replace(RESPONSE, id="id")


async def test_shared_responses_are_charged_to_each_request() -> None:
    harness, account = Harness(), Budget(1_000_000)
    harness.server.response = response_of(200_000)
    await harness.infer()
    await harness.infer(context=new_context(memory=account))
    assert account.held == 200_000


async def test_long_inputs_are_hashed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, to_thread = Harness(), AsyncMock(wraps=asyncio.to_thread)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    for size, threads in ((1_000_000, 0), (2_000_000, 1)):
        await harness.infer(replace(REQUEST, inputs=(replace(X, shape=(size,), data=bytes(size)),)))
        assert to_thread.await_count == threads


async def test_long_responses_are_copied_in_a_thread_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, accounts, threads = Harness(), [], []
    monkeypatch.setattr(harness.cache, "max_entry_bytes", 3_000_000)
    harness.store.set_max_bytes(10_000_000)
    monkeypatch.setattr(cached_route, "encode", lambda *arguments: threads.append(current()) or b"")
    for size in (1_000_000, 2_000_000):
        harness.server.response = response_of(size)
        accounts.append(Budget(size))
        number = Tensor("x", Datatype.UINT8, (1,), bytes([len(accounts)]))
        context = new_context(memory=accounts[-1])
        await harness.infer(replace(REQUEST, inputs=(number,)), context)
    assert [thread is current() for thread in threads] == [True, False]
    assert [account.peak for account in accounts] == [1_000_000, 2_000_000]
    assert [account.held for account in accounts] == [0, 0]


async def test_a_response_is_not_kept_if_memory_is_short() -> None:
    harness = Harness()
    harness.server.response = response_of(200_000)
    context = new_context(memory=Budget(199_999))
    assert (await harness.infer(context=context)).outputs == response_of(200_000).outputs
    assert context.response_headers["cache-status"] == "infergate; fwd=miss"
    assert harness.store.usage().entries == 0


# ---- control operations


@pytest.mark.parametrize("operation", [ModelLoadRequest("m"), ModelUnloadRequest("m")])
@pytest.mark.parametrize("error", [None, GatewayError(Kind.BACKEND_ERROR, "no")])
async def test_loading_or_unloading_a_model_reports_a_change_of_its_backend(
    operation: Any, error: GatewayError | None
) -> None:
    changes: list[tuple[str, bool]] = []

    async def on_change(backend: str, is_finished: bool) -> None:
        changes.append((backend, is_finished))

    backend = Memory("own", error)
    permissions = ControlPermissions(repository=True)
    options = GatewayOptions(permissions=permissions, models_changed=on_change)
    gateway = RoutingGateway(RouteTable([Route("m", "own")]), {"own": backend}, {}, options)
    try:
        await gateway.perform(operation, new_context())
    except GatewayError:
        assert error is not None
    assert changes == [("own", error is None)]
