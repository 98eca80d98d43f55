from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from infergate.backends.builtin import BuiltinBackend
from infergate.comparison.rules import ComparisonRuleError, ComparisonRules, OutputRule
from infergate.comparison.verdict import Verdict
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.gateway.gateway import RoutingGateway
from infergate.migration.replay import replayer
from infergate.migration.replay.entries import DamagedFilePart, Entry
from infergate.migration.replay.pace import Pace
from infergate.migration.replay.replayer import Replayer, ReplayOptions
from infergate.migration.replay.result import ReplayResult
from infergate.migration.replay.target import ReplayTargetError
from infergate.migration.report import render
from infergate.recording.encoding import RecordedExchange
from infergate.recording.reader import DamagedPart
from infergate.routing.table import Route, RouteTable
from recordings import exchange, tensor

FAST = ReplayOptions(Pace(None))
Respond = Callable[[InferRequest, RequestContext], Awaitable[InferResponse]]


async def echo(request: InferRequest, context: RequestContext) -> InferResponse:
    del context
    (x,) = request.inputs
    return InferResponse(request.model, outputs=(replace(x, name="y"),))


class Server(BuiltinBackend):
    """Responds with the result of ``respond``, and records the requests."""

    def __init__(self, respond: Respond = echo) -> None:
        super().__init__("b", ())
        self._respond = respond
        self.requests: list[InferRequest] = []
        self.contexts: list[RequestContext] = []

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        assert isinstance(operation, InferRequest)
        self.requests.append(operation)
        self.contexts.append(context)
        return await self._respond(operation, context)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        while True:
            yield await self._respond(request, context)


class Target:
    """Sends the inferences of all models except ``unknown`` to one server."""

    def __init__(self, server: Server) -> None:
        self._gateway = RoutingGateway(RouteTable((Route("*", "b"),)), {"b": server}, {})

    async def gateway_for(self, each: Exchange) -> RoutingGateway:
        if each.request.model == "unknown":
            raise ReplayTargetError("no server speaks this protocol")
        return self._gateway

    async def close(self) -> None:
        await self._gateway.close()


def entries_of(*exchanges: Exchange, redacted: tuple[str, ...] = ()) -> list[Entry]:
    return [RecordedExchange(each, redacted=redacted, length=10) for each in exchanges]


async def replay(
    entries: list[Entry], server: Server | None = None, options: ReplayOptions = FAST
) -> ReplayResult:
    return await Replayer(iter(entries), Target(server or Server()), options).run()


def with_outcome(number: int, *responses: InferResponse, **fields: Any) -> Exchange:
    error = fields.pop("error", None)
    return exchange(number, outcome=Outcome(responses, error), **fields)


async def test_equal_responses_give_the_verdict_equal() -> None:
    result = await replay(entries_of(*map(exchange, range(100))))
    counts = result.counts
    assert (counts.sent, counts.compared, counts.equal) == (100, 100, 100)
    assert result.summary.verdict() is Verdict.EQUAL
    assert result.is_equal


async def test_other_values_give_the_verdict_different() -> None:
    async def respond(request: InferRequest, context: RequestContext) -> InferResponse:
        response = await echo(request, context)
        if request.inputs[0].numpy()[0] == 7:
            return replace(response, outputs=(tensor("y", 7.5),))
        return response

    result = await replay(entries_of(*map(exchange, range(10))), Server(respond))
    assert (result.counts.compared, result.counts.equal) == (10, 9)
    assert not result.is_equal


async def test_errors_are_compared_by_their_kind() -> None:
    async def fail(request: InferRequest, context: RequestContext) -> InferResponse:
        raise GatewayError(Kind.BAD_REQUEST, "this text is new")

    failed = with_outcome(1, error=GatewayError(Kind.BAD_REQUEST, "this was the text"))
    assert (await replay(entries_of(failed), Server(fail))).is_equal
    assert not (await replay(entries_of(failed))).is_equal
    assert not (await replay(entries_of(exchange(1)), Server(fail))).is_equal


async def test_a_recorded_request_is_sent_with_added_headers() -> None:
    server = Server()
    each = exchange(1, headers={"x-tenant": "a"}, parameters={"p": 1})
    options = replace(FAST, headers={"authorization": "Bearer new"})
    await replay(entries_of(each), server, options)
    assert server.requests == [each.request]
    assert server.contexts[0].headers == {
        "x-tenant": "a",
        "authorization": "Bearer new",
        "x-request-id": "id-1",
    }


async def test_a_sequence_is_sent_in_order_and_sequences_run_concurrently() -> None:
    release = asyncio.Event()
    received: list[tuple[int, int]] = []

    async def respond(request: InferRequest, context: RequestContext) -> InferResponse:
        sequence = int(request.parameters["sequence_id"])
        received.append((sequence, int(request.inputs[0].numpy()[0])))
        if sequence == 1 and not release.is_set():
            await release.wait()  # the other sequence continues
        if received.count((2, 5)):
            release.set()
        return await echo(request, context)

    order = [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    entries = entries_of(*(exchange(n, parameters={"sequence_id": s}) for s, n in order))
    result = await replay(entries, Server(respond))
    assert result.is_equal
    for sequence in (1, 2):
        assert [each for each in received if each[0] == sequence] == [
            each for each in order if each[0] == sequence
        ]
    assert received.index((2, 5)) < received.index((1, 1))


class SlowResponder:
    """Returns the inputs slowly. ``peak`` is the maximum number of concurrent requests."""

    running = peak = 0

    async def respond(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self.running += 1
        self.peak = max(self.peak, self.running)
        for _ in range(20):
            await asyncio.sleep(0)
        self.running -= 1
        return await echo(request, context)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_the_number_of_inferences_in_progress_is_limited(concurrency: int) -> None:
    slow = SlowResponder()
    options = replace(FAST, concurrency=concurrency)
    await replay(entries_of(*map(exchange, range(20))), Server(slow.respond), options)
    assert slow.peak == concurrency


@pytest.mark.parametrize("overhead", [0, 100])
async def test_the_memory_of_inferences_in_progress_is_limited(
    overhead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An exchange counts as 12 bytes plus its overhead.
    monkeypatch.setattr(replayer, "_MAX_HELD_BYTES", 2 * (12 + overhead))
    slow = SlowResponder()
    entries: list[Entry] = [
        RecordedExchange(exchange(number), overhead=overhead) for number in range(20)
    ]
    result = await replay(entries, Server(slow.respond))
    assert result.counts.sent == 20
    assert slow.peak == 2


async def test_inferences_wait_until_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(replayer.asyncio, "sleep", record)
    times = [1000.0, 1000.0 + 3600, 1000.0 + 7200]
    entries = entries_of(*(exchange(n, started_at=time) for n, time in enumerate(times)))
    await replay(entries, options=ReplayOptions(Pace(2)))
    assert [math.ceil(each / 600) * 600 for each in sorted(waited)] == [1800, 3600]


async def test_the_number_of_replayed_inferences_can_be_limited() -> None:
    server = Server()
    result = await replay(
        entries_of(*map(exchange, range(10))), server, replace(FAST, max_requests=3)
    )
    assert result.counts.sent == 3
    assert [int(each.inputs[0].numpy()[0]) for each in server.requests] == [0, 1, 2]


async def test_a_damaged_part_is_listed_and_does_not_stop_the_replay() -> None:
    damaged = DamagedFilePart("f", DamagedPart(5, 10, "the checksum is wrong"))
    result = await replay([*entries_of(exchange(1)), damaged, *entries_of(exchange(2))])
    assert result.counts.sent == 2
    assert result.damaged == ["f: bytes 5 to 14: the checksum is wrong"]
    assert result.is_equal


async def test_an_inference_that_cannot_be_sent_is_not_equal() -> None:
    result = await replay(entries_of(exchange(1), exchange(2, "unknown")))
    assert (result.counts.sent, result.counts.not_sent) == (1, 1)
    assert result.reasons == {"no server speaks this protocol": 1}
    assert not result.is_equal


async def test_requests_that_their_client_cancelled_are_sent_and_not_compared() -> None:
    cancelled = with_outcome(1, error=GatewayError(Kind.CANCELLED, "gone"))
    result = await replay(entries_of(cancelled))
    assert (result.counts.sent, result.counts.cancelled, result.counts.compared) == (1, 1, 0)
    assert result.is_equal


async def test_redacted_outputs_are_not_compared() -> None:
    response = InferResponse("m", outputs=(tensor("y", 1), tensor("z", 0)))
    entries = entries_of(with_outcome(1, response), redacted=("z",))
    result = await replay(entries)
    assert (result.counts.compared, result.is_equal) == (1, True)
    result = await replay(entries_of(exchange(1), redacted=("x",)))
    assert (result.counts.sent, result.counts.redacted, result.counts.compared) == (1, 1, 0)


async def test_further_responses_of_a_stream_are_a_difference_and_are_not_awaited() -> None:
    response = InferResponse("m", outputs=(tensor("y", 1),))
    stream = with_outcome(1, response, response, is_stream=True)
    result = await replay(entries_of(stream))
    assert (result.counts.compared, result.counts.equal) == (1, 0)
    (model,) = result.summary.routes["route"].values()
    assert model.causes == {"responses": 1}


async def test_a_rule_for_an_output_that_no_response_has_is_an_error() -> None:
    rules = ComparisonRules(outputs={"z": OutputRule(atol=1)})
    with pytest.raises(ComparisonRuleError, match=r"the rules name the output 'z', but.*: y"):
        await replay(entries_of(exchange(1)), options=replace(FAST, rules=rules))


@pytest.mark.parametrize("kind", [None, Kind.BAD_REQUEST])
async def test_a_rule_for_an_output_is_valid_if_the_server_fails(
    kind: Kind | None,
) -> None:
    """``kind`` is the recorded error. A recorded error has no outputs that the rule could name."""

    async def fail(request: InferRequest, context: RequestContext) -> InferResponse:
        raise GatewayError(Kind.CONNECT, "connection refused")

    rules = ComparisonRules(outputs={"y": OutputRule(atol=1)})
    each = with_outcome(1, error=GatewayError(kind, "no")) if kind else exchange(1)
    result = await replay(entries_of(each), Server(fail), replace(FAST, rules=rules))
    assert (result.counts.compared, result.counts.equal) == (1, 0)
    assert not result.is_equal


async def test_a_rule_that_does_not_apply_to_a_datatype_stops_the_replay() -> None:
    rules = ComparisonRules(outputs={"y": OutputRule(atol=1)})
    output = replace(exchange(1).outcome.responses[0].outputs[0], datatype=Datatype.INT32)
    response = InferResponse("m", outputs=(output,))
    entries = entries_of(*[with_outcome(n, response) for n in range(50)])
    with pytest.raises(ComparisonRuleError, match="output 'y' is INT32"):
        await replay(entries, options=replace(FAST, rules=rules))


async def test_progress_is_reported_for_every_part_of_the_files() -> None:
    lengths: list[int] = []
    damaged = DamagedFilePart("f", DamagedPart(5, 3, "x"))
    entries = iter([*entries_of(exchange(1)), damaged])
    await Replayer(entries, Target(Server()), FAST, lambda _, count: lengths.append(count)).run()
    assert sorted(lengths) == [3, 10]


async def test_the_number_of_routes_in_the_summary_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayer, "_MAX_ROUTES", 2)
    entries = entries_of(*(replace(exchange(n), route=f"route {n}") for n in range(5)))
    result = await replay(entries, options=replace(FAST, concurrency=1))
    assert list(result.summary.routes) == ["route 0", "route 1", "(others)"]
    assert (result.counts.compared, result.counts.equal) == (5, 5)


async def test_invalid_durations_in_a_file_are_compared() -> None:
    entries = entries_of(
        *(
            replace(exchange(n), outcome=replace(exchange(n).outcome, duration=duration))
            for n, duration in enumerate((math.nan, math.inf, -1.0, 1e308))
        )
    )
    result = await replay(entries)
    assert result.is_equal
    assert ReplayResult.from_json(json.loads(json.dumps(result.as_json()))).is_equal
    assert render(result.summary, "html")
    assert render(result.summary, "text")


async def test_a_cancelled_replay_keeps_its_result() -> None:
    reached = asyncio.Event()

    async def respond(request: InferRequest, context: RequestContext) -> InferResponse:
        if request.inputs[0].numpy()[0] == 3:
            reached.set()
            await asyncio.Event().wait()
        return await echo(request, context)

    entries = iter(entries_of(*map(exchange, range(10))))
    options = replace(FAST, concurrency=1)
    running = Replayer(entries, Target(Server(respond)), options)
    task = asyncio.ensure_future(running.run())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (running.result.counts.sent, running.result.counts.equal) == (3, 3)
    assert running.result.counts.seconds > 0


async def test_an_inference_with_a_redacted_body_is_not_sent() -> None:
    server = Server()
    result = await replay(entries_of(exchange(1), redacted=("(body)",)), server)
    assert (result.counts.not_sent, server.requests) == (1, [])
    assert result.reasons == {"the body of the request was redacted in the recording": 1}
