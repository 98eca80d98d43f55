"""Routes by header, and inferences on other backends: splits, fallbacks and mirrors."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from fakes import LineCodec, Memory, WireBackend, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core import messages
from infergate.core.counters import RouteCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.core.wire import RpcRequest
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.routing.table import MirrorTarget, Rewrite, Route, RouteTable, SplitTarget
from memory_budget import Budget
from waiting import until

CONNECTION_REFUSED = GatewayError(Kind.CONNECT, "connection refused")
REQUEST = InferRequest("m", "", "id")


class Harness:
    def __init__(self, *routes: Route, **backends: Memory) -> None:
        self.own, self.other = Memory("own"), Memory("other")
        by_name: dict[str, Any] = {"own": self.own, "other": self.other, **backends}
        self.counters = RouteCounters()
        self.gateway = RoutingGateway(
            RouteTable(routes),
            by_name,
            {},
            GatewayOptions(counters_of=lambda _: self.counters),
        )

    async def send_request(self, request: InferRequest = REQUEST, **fields: Any) -> RequestContext:
        context = new_context(**fields)
        await perform(self.gateway, request, InferResponse, context)
        return context

    async def stream(self, **fields: Any) -> list[InferResponse]:
        context = new_context(**fields)
        binding = self.gateway.bind("m", "", context)
        return [each async for each in self.gateway.stream(REQUEST, binding, context)]


def split(percent: float, by: str = "", **rewrite: str) -> Route:
    return Route("m", "own", split=[SplitTarget("other", percent, Rewrite(**rewrite))], split_by=by)


# ---- headers -----------------------------------------------------------------------------------


async def test_a_header_selects_the_route() -> None:
    harness = Harness(
        Route("m", "other", headers={"x-canary": "yes*", "x-team": "blue"}), Route("m", "own")
    )
    two_headers = {"x-canary": "yes, please", "x-team": "blue"}
    assert (await harness.send_request(headers=two_headers)).record.backend == "other"
    for headers in ({}, {"x-canary": "yes"}, {"x-canary": "no", "x-team": "blue"}):
        assert (await harness.send_request(headers=headers)).record.backend == "own"


async def test_a_request_without_the_header_may_match_no_route() -> None:
    harness = Harness(Route("m", "own", headers={"x-a": "1"}), Route("n", "own", version="2"))
    with raises_kind(Kind.NOT_FOUND, match="no route for requests with these headers"):
        await harness.send_request()
    with pytest.raises(GatewayError, match="no route for version '3'"):
        await harness.send_request(InferRequest("n", "3"))


# ---- a split -------------------------------------------------------------------------------------


async def test_a_split_share_uses_the_other_backends_model_name() -> None:
    harness = Harness(split(25, model="new"))
    backends = Counter(
        [(await harness.send_request(request_id=str(n))).record.backend for n in range(400)]
    )
    assert 60 < backends["other"] < 140
    assert {each.model for each in harness.other.requests if isinstance(each, InferRequest)} == {
        "new"
    }
    assert {each.model for each in harness.own.requests if isinstance(each, InferRequest)} == {"m"}


async def test_a_header_value_always_goes_to_the_same_backend() -> None:
    harness = Harness(split(50, by="x-user"))
    for user in range(30):
        headers = {"x-user": str(user)}
        backends = {
            (await harness.send_request(headers=headers, request_id=f"{user}-{n}")).record.backend
            for n in range(5)
        }
        assert len(backends) == 1
    assert harness.own.requests
    assert harness.other.requests


async def test_a_sequence_always_goes_to_the_same_backend() -> None:
    harness = Harness(split(50, by="x-user"))
    for number in range(1, 30):
        request = InferRequest("m", "", "id", {"sequence_id": number})
        backends = {
            (
                await harness.send_request(request, headers={"x-user": str(n)}, request_id=str(n))
            ).record.backend
            for n in range(5)
        }
        assert len(backends) == 1
    assert harness.own.requests
    assert harness.other.requests


async def test_streams_are_split_too() -> None:
    harness = Harness(split(100))
    (response,) = await harness.stream(request_id="1")
    assert response.is_last
    assert (len(harness.own.requests), len(harness.other.requests)) == (0, 1)


async def test_other_operations_use_the_routes_own_backend() -> None:
    harness = Harness(split(100))
    await harness.gateway.perform(messages.ModelReadyRequest("m"), new_context())
    assert harness.own.requests == [messages.ModelReadyRequest("m")]


# ---- a fallback --------------------------------------------------------------------------------


async def test_unsent_requests_use_the_fallback() -> None:
    harness = Harness(Route("m", "own", fallback="other"))
    assert (await harness.send_request()).record.backend == "own"
    harness.own.answer = CONNECTION_REFUSED
    context = await harness.send_request()
    assert (context.record.backend, context.record.outcome) == ("other", "ok")
    assert len(await harness.stream()) == 1
    assert harness.counters.fallbacks == 2


@pytest.mark.parametrize("kind", [Kind.TIMEOUT, Kind.BACKEND_GARBAGE, Kind.OVERLOADED])
async def test_other_errors_do_not_cause_a_fallback(kind: Kind) -> None:
    harness = Harness(Route("m", "own", fallback="other"))
    harness.own.answer = GatewayError(kind, "the backend failed")
    with pytest.raises(GatewayError, match="the backend failed"):
        await harness.send_request()
    assert not harness.other.requests


async def test_a_sequence_does_not_fall_back() -> None:
    harness = Harness(Route("m", "own", fallback="other"))
    harness.own.answer = CONNECTION_REFUSED
    with pytest.raises(GatewayError, match="connection refused"):
        await harness.send_request(InferRequest("m", "", "id", {"sequence_id": 7}))
    assert not harness.other.requests


async def test_the_error_of_an_unreachable_fallback_is_returned() -> None:
    harness = Harness(Route("m", "own", fallback="other"))
    harness.own.answer = CONNECTION_REFUSED
    harness.other.answer = GatewayError(Kind.CONNECT, "the fallback is down")
    with pytest.raises(GatewayError, match="the fallback is down"):
        await harness.send_request()
    with pytest.raises(GatewayError, match="the fallback is down"):
        await harness.stream()


async def test_a_started_stream_does_not_fall_back() -> None:
    class Breaking(Memory):
        async def stream(
            self, request: InferRequest, context: RequestContext
        ) -> AsyncGenerator[InferResponse, None]:
            yield InferResponse("m", "1", "", {}, ())
            raise CONNECTION_REFUSED

    harness = Harness(Route("m", "first", fallback="other"), first=Breaking("first"))
    with pytest.raises(GatewayError, match="connection refused"):
        await harness.stream()
    assert not harness.other.requests


# ---- a mirror ----------------------------------------------------------------------------------


class HeldBackend(Memory):
    """A backend that records each request twice: on arrival and when it is released."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.release = asyncio.Event()

    async def perform(self, operation: messages.Operation, context: RequestContext) -> Any:
        self.requests.append(operation)
        self.context = context
        await self.release.wait()
        return await super().perform(operation, context)


def mirroring(
    percent: float = 100.0, maximum: int = 16, **rewrite: str
) -> tuple[Harness, HeldBackend]:
    backend = HeldBackend("mirror")
    target = MirrorTarget("mirror", percent, maximum, rewrite=Rewrite(**rewrite))
    return Harness(Route("m", "own", mirror=target), mirror=backend), backend


async def test_a_copy_is_sent_after_the_response() -> None:
    harness, mirror = mirroring()
    context = await harness.send_request(deadline=None, request_id="r1")
    assert context.record.backend == "own"
    assert not mirror.requests
    await until(lambda: mirror.requests == [REQUEST])
    assert mirror.context.request_id == "r1"
    mirror.release.set()
    await until(lambda: harness.counters.mirrored == {"ok": 1})
    assert context.record.backend == "own"


async def test_a_copy_has_the_names_of_its_backend() -> None:
    harness, mirror = mirroring(model="new")
    await harness.send_request()
    await until(lambda: mirror.requests == [replace(REQUEST, model="new")])
    assert harness.own.requests == [REQUEST]
    mirror.release.set()


async def test_the_number_of_copies_is_bounded() -> None:
    harness, mirror = mirroring(maximum=2)
    for _ in range(5):
        await harness.send_request()
    await until(lambda: len(mirror.requests) == 2)
    assert harness.counters.mirrored == {"dropped": 3}
    assert len(harness.own.requests) == 5
    mirror.release.set()
    await until(lambda: harness.counters.mirrored == {"dropped": 3, "ok": 2})
    await harness.send_request()
    await until(lambda: len(mirror.requests) == 4)  # two records for each copy


async def test_the_memory_of_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.gateway.mirror.MAX_BYTES", 10)
    harness, mirror = mirroring()
    for size, copies, dropped in ((12, 1, 0), (0, 1, 1), (4, 1, 2)):
        tensor = Tensor("x", Datatype.UINT8, (size,), bytes(size))
        await harness.send_request(InferRequest("m", "", "id", {}, (tensor,)))
        await until(lambda: len(mirror.requests) == copies)  # noqa: B023
        assert harness.counters.mirrored["dropped"] == dropped
    mirror.release.set()
    sender = harness.gateway.traffic_splits[harness.gateway.bindings[0]]._mirror_sender
    await until(lambda: not sender._tasks)
    assert harness.counters.mirrored["ok"] == 1
    mirror.release.clear()
    for size in (6, 4, 1):
        tensor = Tensor("x", Datatype.UINT8, (size,), bytes(size))
        await harness.send_request(InferRequest("m", "", "id", {}, (tensor,)))
    assert harness.counters.mirrored["dropped"] == 3
    await harness.gateway.close()


async def test_a_copy_has_its_own_memory_reservation() -> None:
    """A copy may outlive its request, so its response is not charged to the request."""
    harness, mirror = mirroring()
    tensor = Tensor("x", Datatype.UINT8, (4,), bytes(4))
    memory = Budget(4)
    await harness.send_request(InferRequest("m", "", "id", {}, (tensor,)), memory=memory)
    await until(lambda: len(mirror.requests) == 1)
    account: Any = mirror.context.memory
    assert (memory.held, account.held) == (0, 4)
    mirror.release.set()
    await until(lambda: harness.counters.mirrored["ok"] == 1)
    await until(lambda: account.held == 0)
    await harness.send_request(InferRequest("m", "", "id", {}, (tensor,)), memory=Budget(3))
    assert harness.counters.mirrored["dropped"] == 1


async def test_a_share_of_the_sequences_is_mirrored_completely() -> None:
    harness, mirror = mirroring(percent=30, maximum=10_000)
    mirror.release.set()
    for number in range(1, 101):
        for _ in range(3):
            await harness.send_request(InferRequest("m", "", "id", {"sequence_id": number}))
    await until(lambda: len(asyncio.all_tasks()) == 1)
    copies = Counter(str(each.parameters) for each in mirror.requests)  # type: ignore[attr-defined]
    assert set(copies.values()) == {6}
    assert 15 < len(copies) < 45


def in_sequence(number: int, **parameters: bool) -> InferRequest:
    return InferRequest("m", "", "id", {"sequence_id": number, **parameters})


async def test_copies_of_a_sequence_are_sent_one_after_the_other() -> None:
    harness, mirror = mirroring()
    requests = [in_sequence(7), in_sequence(7, sequence_end=True)]
    for request in requests:
        await harness.send_request(request)
    await harness.send_request(in_sequence(8))
    await until(lambda: len(mirror.requests) == 2)  # the first copy of each sequence waits
    mirror.release.set()
    await until(lambda: harness.counters.mirrored["ok"] == 3)
    sevens = [each for each in mirror.requests[2:] if each in requests]
    assert sevens[0] is requests[0]
    assert sevens[-1] is requests[1]


async def test_after_a_dropped_copy_the_rest_of_its_sequence_is_dropped() -> None:
    harness, mirror = mirroring(maximum=1)
    await harness.send_request()
    await harness.send_request(in_sequence(7, sequence_start=True))
    assert harness.counters.mirrored == {"dropped": 1}
    mirror.release.set()
    sender = harness.gateway.traffic_splits[harness.gateway.bindings[0]]._mirror_sender
    await until(lambda: not sender._tasks)
    await harness.send_request(in_sequence(7, sequence_end=True))
    assert harness.counters.mirrored["dropped"] == 2
    await harness.send_request(in_sequence(7, sequence_start=True))  # a new sequence
    await until(lambda: harness.counters.mirrored["ok"] == 2)


async def test_without_a_share_the_backend_is_used_directly() -> None:
    route = Route(
        "m", "own", split=[SplitTarget("other", 0, Rewrite())], mirror=MirrorTarget("other", 0)
    )
    harness = Harness(route)
    assert not harness.gateway.traffic_splits
    harness.other.answer = CONNECTION_REFUSED
    ready = await harness.gateway.perform(messages.ServerReadyRequest(), new_context())
    assert ready == messages.HealthStatus(ok=True)
    for _ in range(3):
        await harness.send_request()
    assert len(harness.own.requests) == 3 + 1  # three inferences and a readiness check


async def test_a_failing_mirror_affects_no_client(caplog: pytest.LogCaptureFixture) -> None:
    harness, mirror = mirroring()
    mirror.release.set()
    mirror.answer = CONNECTION_REFUSED
    await harness.send_request()
    await until(lambda: harness.counters.mirrored == {"failed": 1})
    mirror.answer = ValueError("a bug")  # type: ignore[assignment]
    await harness.send_request()
    await until(lambda: harness.counters.mirrored == {"failed": 2})
    assert "internal error while mirroring a request" in caplog.text


async def test_requests_that_fail_are_mirrored_too() -> None:
    harness, mirror = mirroring()
    harness.own.answer = GatewayError(Kind.BACKEND_ERROR, "it broke")
    with pytest.raises(GatewayError, match="it broke"):
        await harness.send_request()
    await until(lambda: mirror.requests == [REQUEST])
    await harness.gateway.close()


async def test_closing_cancels_copies() -> None:
    harness, mirror = mirroring()
    await harness.send_request()
    await until(lambda: bool(mirror.requests))
    before = len(asyncio.all_tasks())
    await harness.gateway.close()
    assert len(asyncio.all_tasks()) == before - 1
    assert not harness.counters.mirrored


async def test_streams_are_mirrored_as_streams() -> None:
    harness, mirror = mirroring()
    mirror.release.set()
    assert len(await harness.stream()) == 1
    await until(lambda: harness.counters.mirrored == {"ok": 1})


async def test_requests_with_shared_memory_are_not_mirrored() -> None:
    harness, mirror = mirroring()
    tensor = Tensor(
        "x", next(iter(mirror.datatypes)), (1,), b"", shared_memory=RegionRef("r", 0, 4)
    )
    with pytest.raises(GatewayError):
        await harness.send_request(InferRequest("m", "", "id", {}, (tensor,)))
    await asyncio.sleep(0)
    assert not mirror.requests


async def test_an_unreachable_mirror_does_not_make_the_gateway_unready() -> None:
    harness, mirror = mirroring()
    mirror.release.set()
    mirror.answer = CONNECTION_REFUSED
    assert await harness.gateway.perform(
        messages.ServerReadyRequest(), new_context()
    ) == messages.HealthStatus(ok=True)
    harness = Harness(Route("m", "own", fallback="other", mirror=MirrorTarget("other")))
    harness.other.answer = CONNECTION_REFUSED
    assert await harness.gateway.perform(
        messages.ServerReadyRequest(), new_context()
    ) == messages.HealthStatus(ok=False)


async def test_only_routes_with_a_traffic_split_are_translated_for_it() -> None:
    backend = WireBackend("own", LineCodec())
    routes = [Route("m", "own", fallback="other"), Route("n", "own")]
    by_name: dict[str, Any] = {"own": backend, "other": Memory("other")}
    created = Frontend(LineCodec(), RoutingGateway(RouteTable(routes), by_name, {}), DEFAULT_LIMITS)
    pipelines = []
    for model in ("m", "n"):
        context = new_context()
        await created.respond(RpcRequest(f"infer {model} 1 id"), context)
        pipelines.append(context.record.pipeline)
    assert pipelines == ["translate", "forward"]
