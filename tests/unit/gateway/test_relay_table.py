"""Relayed requests have the results of requests in tasks, are freed, and fail independently."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from relay_kit import (
    METHOD,
    HttpStack,
    Pair,
    RestServersStack,
    Stack,
    TranslatedStack,
    legacy_request,
    patches,
    request_message,
    rest_request,
)

from infergate.access.authenticator import Authenticator, KeyRing
from infergate.access.authorizer import Authorizer, AuthorizerSettings
from infergate.access.keys import ApiKey, ApiKeys, digest_of
from infergate.access.rate_limits import (
    LocalBuckets,
    Rate,
    RateLimit,
    RateLimits,
)
from infergate.access.rules import AccessRule, AccessRules
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcRequest
from infergate.gateway.relay import RelayedPassThrough, RelayedTranslation
from reference_cycles import garbage_collector_disabled

SECRET = "infergate_the-key-of-a"
NO_JSON = ("inference-header-content-length", "0")
"""The body is the data of the only input, which the model's metadata describes."""
KEY = ("x-api-key", SECRET)
Step = Callable[[Pair], None]


def call(
    model: str = "m",
    size: int = 4,
    kind: str = "raw",
    headers: Sequence[tuple[str, str]] = (),
    key: str = "k",
) -> Step:
    def step(stack: Stack) -> None:
        build = legacy_request if stack.is_legacy else request_message
        if isinstance(stack, HttpStack):
            build = rest_request
        stack.call(key, build(model, size, kind), headers)

    return lambda pair: pair.run(step)


def answer(kind: str, key: str = "k") -> Step:
    return lambda pair: pair.run(lambda stack: stack.answer(key, kind))


def advance(seconds: float) -> Step:
    return lambda pair: pair.advance(seconds)


def on_stacks(action: Callable[[Stack], object]) -> Step:
    return lambda pair: pair.run(action)


def refuse_connections(pair: Pair) -> None:
    for stack in pair.stacks:
        stack.refuses_connections = True


def take_slot(stack: Stack) -> None:
    assert stack.backend._queue is not None
    assert stack.backend._queue.try_enter()


def leave_slot(stack: Stack) -> None:
    assert stack.backend._queue is not None
    stack.backend._queue.leave()


def new_authorizer() -> Authorizer:
    """Return an authorizer that permits key ``a`` one inference of model ``m`` a minute."""
    rules = AccessRules((AccessRule(("key:a",), models=("m",)),))
    limit = RateLimit(("*",), requests=Rate(1, 60.0, 1))
    return Authorizer(
        AuthorizerSettings(True, False, lambda _: None, lambda *_: None),
        Authenticator(rules, KeyRing(ApiKeys([ApiKey("a", digest_of(SECRET))]), None), None),
        RateLimits((limit,), LocalBuckets()),
        route_label=lambda *_: "m",
        close_callbacks=(),
    )


def send_together(stack: Stack, count: int) -> None:
    """Send ``count`` invalid requests in one write."""
    for number in range(count):
        stack.call(f"k{number}", rest_request("m", kind="garbage"), (), 0)
    stack.write()


SHUTDOWN = GatewayError(Kind.OVERLOADED, "the gateway is shutting down")
RESET = on_stacks(lambda stack: stack.reset("k"))
DISCONNECT = on_stacks(lambda stack: stack.transport.close())
SHUT_DOWN = on_stacks(lambda stack: stack.connection.cancel_with(SHUTDOWN))
LONG_HEADERS = [(f"x-{number}", "1" * 900) for number in range(12)]

LEGACY: dict[str, Any] = {"is_legacy": True}
REST: dict[str, Any] = {"stack_type": HttpStack}
TRANSLATED: dict[str, Any] = {"stack_type": TranslatedStack, "has_helpers": True}
TO_REST: dict[str, Any] = {"stack_type": RestServersStack, "has_helpers": True}
TWO_ENDPOINTS = {"endpoints": 2}
ONE_SLOT = {"max_requests": 1}
WITH_KEYS = {"authorizer": new_authorizer}


def limits(**values: int) -> dict[str, Any]:
    return {"limits": Limits(**values)}


SMALL_BODY = limits(body=1000)
CASES: dict[str, tuple[dict[str, Any], list[Step], str]] = {
    # options of the gateway, steps, and the outcome and exceeded limit of each logged request
    "ok": ({}, [call(), answer("ok")], "ok"),
    "renamed": ({}, [call("renamed"), answer("ok")], "ok"),
    "not validated": ({}, [call("trusted", kind="wrong"), answer("ok")], "ok"),
    "long request": ({}, [call(size=190_000), answer("ok")], "ok"),
    "two endpoints": (TWO_ENDPOINTS, [call(), answer("ok")], "ok"),
    "a sequence": (TWO_ENDPOINTS, [call(kind="sequence"), answer("ok")], "ok"),
    "typed contents": ({}, [call(kind="typed"), answer("ok")], "ok"),
    "in_flight": (
        limits(in_flight=1),
        [call(), call(key="l"), answer("ok")],
        "ok, overloaded in_flight",
    ),
    "in_flight_bytes": (
        limits(in_flight_bytes=100_000),
        [call(size=70_000), call(size=70_000, key="l"), answer("ok")],
        "ok, overloaded in_flight_bytes",
    ),
    "body": (SMALL_BODY, [call(size=70_000)], "too_large body"),
    "headers": (limits(headers=500), [call(headers=[("x-long", "1" * 600)])], "too_large headers"),
    "header_count": (
        limits(header_count=5),
        [call(headers=[(f"x-{number}", "1") for number in range(6)])],
        "too_large header_count",
    ),
    "forwarded_headers": ({}, [call(headers=LONG_HEADERS)], "too_large forwarded_headers"),
    "rank": (limits(rank=0), [call()], "bad_request rank"),
    "unknown model": ({}, [call("unknown")], "not_found"),
    "invalid model name": ({}, [call("a%20b")], "bad_request"),
    "wrong size of the data": ({}, [call(kind="wrong")], "bad_request"),
    "invalid protobuf": ({}, [call(kind="garbage")], "bad_request"),
    "error of the backend": ({}, [call(), answer("invalid")], "bad_request"),
    "unavailable": ({}, [call(), answer("unavailable")], "no_backend"),
    "garbage": ({}, [call(), answer("garbage")], "backend_garbage"),
    "no message": ({}, [call(), answer("empty")], "backend_garbage"),
    "oversized response": ({}, [call(), answer("oversize")], "too_large"),
    "reset": ({}, [call(), answer("reset")], "backend_garbage"),
    "connection lost": ({}, [call(), answer("lost")], "backend_garbage"),
    "connection lost by several calls": (  # the calls fail in the order of their ids
        LEGACY,
        [call(), answer("ok")]
        + [call(key=f"k{number}") for number in range(4)]
        + [answer("lost", "k0")],
        "ok" + ", backend_garbage" * 4,
    ),
    "refused once": ({}, [call(), answer("refused"), answer("ok")], "ok"),
    "refused twice": (
        {},
        [call(), answer("refused"), answer("refused"), advance(0.1), answer("ok")],
        "ok",
    ),
    "refused, without retries": (
        {},
        [call("once"), answer("refused"), answer("refused")],
        "connect",
    ),
    "GOAWAY": ({}, [call(), answer("goaway"), answer("ok")], "ok"),
    "no connection": ({}, [refuse_connections, call(), advance(0.1)], "connect"),
    "timeout of the backend": ({}, [call(), advance(6.0)], "timeout"),
    "timeout of the route": ({}, [call("quick"), advance(0.6)], "timeout"),
    "the client's deadline": (
        {},
        [call(headers=[("grpc-timeout", "100m")]), advance(0.3)],
        "timeout",
    ),
    "a deadline that has passed": (
        {},
        [call(headers=[("grpc-timeout", "0m")]), advance(0.3)],
        "timeout",
    ),
    "full queue": (
        ONE_SLOT,
        [call(), call(key="l"), call(key="n"), answer("ok"), answer("ok", "l")],
        "ok, ok, overloaded",
    ),
    "time in the queue": (
        ONE_SLOT,
        [call(), call("quick", key="l"), advance(0.6), answer("ok")],
        "ok, timeout",
    ),
    "cancelled": ({}, [call(), RESET], "cancelled"),
    "disconnected": ({}, [call(), DISCONNECT], "cancelled"),
    "shut down": ({}, [call(), SHUT_DOWN], "overloaded"),
    "legacy": (LEGACY, [call(), answer("ok")], "ok"),
    "legacy, renamed": (LEGACY | TWO_ENDPOINTS, [call("renamed"), answer("ok")], "ok"),
    "legacy, a sequence": (LEGACY | TWO_ENDPOINTS, [call(kind="sequence"), answer("ok")], "ok"),
    "legacy, wrong size of the data": (LEGACY, [call(kind="wrong")], "bad_request"),
    "legacy, invalid protobuf": (LEGACY, [call(kind="garbage")], "bad_request"),
    "legacy, garbage": (LEGACY, [call(), answer("garbage")], "backend_garbage"),
    "legacy, unavailable": (LEGACY, [call(), answer("unavailable")], "no_backend"),
    "REST": (REST, [call(), answer("ok")], "ok"),
    "REST, renamed": (REST | TWO_ENDPOINTS, [call("renamed"), answer("ok")], "ok"),
    "REST, a sequence": (REST | TWO_ENDPOINTS, [call(kind="sequence"), answer("ok")], "ok"),
    "REST, long request": (REST, [call(size=30_000), answer("ok")], "ok"),
    "REST, closed after the response": (REST, [call(), answer("ok, then closed")], "ok"),
    "REST, compressed": (REST, [call(), answer("compressed")], "ok"),
    "REST, timeout of the route": (REST, [call("quick"), advance(0.6)], "timeout"),
    "REST, wrong size of the data": (REST, [call(kind="wrong")], "bad_request"),
    "REST, invalid JSON": (REST, [call(kind="garbage")], "bad_request"),
    "REST, unknown model": (REST, [call("unknown")], "not_found"),
    "REST, body": (REST | SMALL_BODY, [call(size=3000)], "too_large body"),
    "REST, error of the backend": (REST, [call(), answer("invalid")], "bad_request"),
    "REST, unavailable": (REST, [call(), answer("unavailable")], "no_backend"),
    "REST, garbage": (REST, [call(), answer("garbage")], "backend_garbage"),
    "REST, invalid HTTP": (REST, [call(), answer("no HTTP")], "backend_garbage"),
    "REST, oversized response": (REST, [call(), answer("oversize")], "too_large"),
    "REST, connection lost": (REST, [call(), answer("lost")], "backend_garbage"),
    "REST, partial": (REST, [call(), answer("partial"), advance(6.0)], "timeout"),
    "REST, no connection": (REST, [refuse_connections, call(), advance(0.1)], "connect"),
    "REST, a free slot": (REST | ONE_SLOT, [call(), answer("ok")], "ok"),
    "REST, disconnected": (REST, [call(), DISCONNECT], "cancelled"),
    "REST, shut down": (REST, [call(), SHUT_DOWN], "overloaded"),
    "REST, pipelined": (
        REST,
        [call(), call(key="l"), call(key="n", kind="garbage"), answer("ok"), answer("ok", "l")],
        "ok, ok, bad_request",
    ),
    "REST, errors pipelined": (
        REST,
        [on_stacks(lambda stack: send_together(stack, 20))],
        ", ".join(["bad_request"] * 20),
    ),
    "REST, rate": (
        REST | WITH_KEYS,
        [call(headers=[KEY]), answer("ok"), call(headers=[KEY], key="l")],
        "ok, rate_limited",
    ),
    "translated": (TRANSLATED, [call(), answer("ok")], "ok"),
    "translated, not declared": (TRANSLATED, [call("trusted"), answer("ok")], "ok"),
    "translated, renamed": (TRANSLATED, [call("renamed"), answer("ok")], "ok"),
    "translated, idempotent": (TRANSLATED, [call("again"), answer("ok")], "ok"),
    "translated, without helpers": (
        TRANSLATED | {"has_helpers": False},
        [call(), answer("many")],
        "ok",
    ),
    "translated, a sequence": (
        TRANSLATED | TWO_ENDPOINTS,
        [call(kind="sequence"), answer("ok")],
        "ok",
    ),
    "translated, classes": (TRANSLATED, [call(kind="classes"), answer("ok")], "ok"),
    "translated, binary outputs": (TRANSLATED, [call(kind="binary"), answer("long")], "ok"),
    "translated, large request": (TRANSLATED, [call(size=70_000), answer("ok")], "ok"),
    "translated, many tensors": (TRANSLATED, [call(kind="many"), answer("ok")], "ok"),
    "translated, long response": (TRANSLATED, [call(), answer("long")], "ok"),
    "translated, many elements": (TRANSLATED, [call(), answer("many")], "ok"),
    "translated, long JSON": (
        TRANSLATED | limits(json_inline=500),
        [call(size=1000), answer("long")],
        "ok",
    ),
    "translated, long JSON of the response": (
        TRANSLATED | limits(json_inline=500),
        [call(), answer("long")],
        "ok",
    ),
    "translated, size of the response": (
        TRANSLATED | limits(body=100_000),
        [call(), answer("long")],
        "too_large body",
    ),
    "translated, rank": (TRANSLATED | limits(rank=0), [call()], "bad_request rank"),
    "translated, body": (TRANSLATED | SMALL_BODY, [call(size=3000)], "too_large body"),
    "translated, forwarded_headers": (
        TRANSLATED,
        [call(headers=LONG_HEADERS)],
        "too_large forwarded_headers",
    ),
    "translated, unknown model": (TRANSLATED, [call("unknown")], "not_found"),
    "translated, wrong size of the data": (TRANSLATED, [call(kind="wrong")], "bad_request"),
    "translated, invalid JSON": (TRANSLATED, [call(kind="garbage")], "bad_request"),
    "translated, error of the backend": (TRANSLATED, [call(), answer("invalid")], "bad_request"),
    "translated, unavailable": (TRANSLATED, [call(), answer("unavailable")], "no_backend"),
    "translated, garbage": (TRANSLATED, [call(), answer("garbage")], "backend_garbage"),
    "translated, wrong size of the response": (
        TRANSLATED,
        [call(), answer("wrong")],
        "backend_garbage",
    ),
    "translated, no message": (TRANSLATED, [call(), answer("empty")], "backend_garbage"),
    "translated, oversized response": (TRANSLATED, [call(), answer("oversize")], "too_large"),
    "translated, partial request": (TRANSLATED, [call(headers=[NO_JSON]), answer("ok")], "ok"),
    "translated, partial request without metadata": (
        TRANSLATED,
        [call("trusted", headers=[NO_JSON]), advance(6.0)],
        "timeout",
    ),
    "translated, queue": (
        TRANSLATED | ONE_SLOT,
        [on_stacks(take_slot), call(), advance(0.3), on_stacks(leave_slot), answer("ok")],
        "ok",
    ),
    "translated, time in the queue": (
        TRANSLATED | ONE_SLOT,
        [on_stacks(take_slot), call("quick"), advance(0.6), on_stacks(leave_slot)],
        "timeout",
    ),
    "translated, connection lost": (TRANSLATED, [call(), answer("lost")], "backend_garbage"),
    "translated, refused once": (TRANSLATED, [call(), answer("refused"), answer("many")], "ok"),
    "translated, no connection": (
        TRANSLATED,
        [refuse_connections, call(), advance(0.1)],
        "connect",
    ),
    "translated, timeout of the route": (TRANSLATED, [call("quick"), advance(0.6)], "timeout"),
    "translated, disconnected": (TRANSLATED, [call(), DISCONNECT], "cancelled"),
    "translated, rate": (
        TRANSLATED | WITH_KEYS,
        [call(headers=[KEY]), answer("ok"), call(headers=[KEY], key="l")],
        "ok, rate_limited",
    ),
    "to REST": (TO_REST, [call(), answer("ok")], "ok"),
    "to REST, closed after the response": (TO_REST, [call(), answer("ok, then closed")], "ok"),
    "to REST, compressed": (TO_REST, [call(), answer("compressed")], "ok"),
    "to REST, long JSON": (TO_REST | limits(json_inline=50), [call(size=100), answer("ok")], "ok"),
    "to REST, large request": (TO_REST, [call(size=50_000), answer("ok")], "ok"),
    "to REST, garbage": (TO_REST, [call(), answer("garbage")], "backend_garbage"),
    "to REST, error of the backend": (TO_REST, [call(), answer("invalid")], "bad_request"),
    "to REST, cancelled": (TO_REST, [call(), RESET], "cancelled"),
    "anonymous": (WITH_KEYS, [call()], "unauthenticated"),
    "forbidden": (WITH_KEYS, [call("quick", headers=[KEY])], "forbidden"),
    "rate": (
        WITH_KEYS,
        [call(headers=[KEY]), answer("ok"), call(headers=[KEY], key="l")],
        "ok, rate_limited",
    ),
}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pair]]:
    pairs: list[Pair] = []
    for target, name, value in patches(lambda: pairs[0].loop.now):
        monkeypatch.setattr(target, name, value)
    yield pairs
    pairs[0].close()


@pytest.mark.parametrize("case", CASES)
def test_relayed_requests_and_tasks_have_the_same_results(case: str, patched: list[Pair]) -> None:
    options, steps, outcomes = CASES[case]
    pair = Pair(**options)
    patched.append(pair)
    pair.run()
    repetitions = 2 if outcomes == "ok" else 1  # the first has no connection or cached head
    for step in steps * repetitions:
        step(pair)
    records = [context.record for context in pair.stacks[0].contexts]
    actual = [f"{record.outcome} {record.exceeded_limit}".strip() for record in records]
    assert sorted(actual) == sorted(outcomes.split(", ") * repetitions)


@pytest.mark.parametrize("model", ["m", "renamed", "quick", "trusted"])
@pytest.mark.parametrize(
    "options",
    [{}, {"is_legacy": True}, {"stack_type": TranslatedStack}, {"stack_type": RestServersStack}],
    ids=["V2", "legacy", "translated", "to REST"],
)
def test_a_plain_route_needs_no_task(
    model: str, options: dict[str, Any], patched: list[Pair]
) -> None:
    pair = Pair(endpoints=2, **options)
    patched.append(pair)
    pair.run()
    for key in ("a", "b"):  # a connection to each endpoint
        call(model, key=key)(pair)
        answer("ok", key)(pair)
    call(model)(pair)
    requests = [list(stack.listener.active_requests()) for stack in pair.stacks]
    assert [[type(each) is asyncio.Task for each in active] for active in requests] == [
        [False],
        [True],
    ]
    answer("ok")(pair)


def test_a_relayed_request_is_active_until_it_ends(patched: list[Pair]) -> None:
    pair = Pair()
    patched.append(pair)
    pair.run()
    call(key="a")(pair)
    answer("ok", "a")(pair)
    call()(pair)
    (request,) = pair.stacks[0].listener.active_requests()
    assert list(pair.stacks[0].listener.active_requests()) == [request]
    assert not request.done()
    answer("ok")(pair)
    assert request.done()


@pytest.mark.parametrize("outcome", ["ok", "garbage", "invalid", "lost"])
@pytest.mark.parametrize("options", [{}, REST, TRANSLATED], ids=["gRPC", "HTTP", "translated"])
def test_messages_are_freed_without_garbage_collection(
    options: dict[str, Any], outcome: str, patched: list[Pair]
) -> None:
    pair = Pair(**options)
    patched.append(pair)
    pair.run()
    call(key="a")(pair)
    answer("ok", "a")(pair)
    with garbage_collector_disabled():
        call()(pair)
        assert _relayed_count() == 1
        answer(outcome)(pair)
        assert _relayed_count() == 0


def _relayed_count() -> int:
    """Return the number of relayed requests that began since the last collection."""
    young = gc.get_objects(generation=0)
    return sum(type(each) in (RelayedPassThrough, RelayedTranslation) for each in young)


class FailingCallbacks:
    """Callbacks of a transport that fails to send the response."""

    def __init__(self) -> None:
        self.responses: list[object] = []

    def on_response(self, response: object) -> None:
        self.responses.append(response)
        raise RuntimeError("a bug")

    def continue_in_task(self, _respond: object) -> None:
        raise AssertionError


def test_a_bug_in_sending_a_response_fails_only_one_request(
    patched: list[Pair], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug is recorded once, and other requests on the connection to the backend are served."""
    pair = Pair()
    patched.append(pair)
    pair.run()
    call(key="first")(pair)
    answer("ok", "first")(pair)
    monkeypatch.setattr(pair, "compare", lambda: None)  # only one stack gets the next requests
    stack, callbacks = pair.stacks[0], FailingCallbacks()
    context = RequestContext("peer", headers={"x-request-id": "failing"})
    wire = RpcRequest(METHOD, (request_message("m"),))

    async def serve() -> None:
        app: Any = stack.listener.app
        assert app.relay(wire, context, callbacks) is not None
        await stack.settle()
        stack.call("k", request_message("m"))
        await stack.settle()
        for key in ("failing", "k"):
            stack.answer(key, "ok")
            await stack.settle()

    pair.loop.run_until_complete(pair.loop.create_task(serve(), context=stack.context))
    assert len(callbacks.responses) == 1
    assert [each.record.outcome for each in stack.contexts] == ["ok", "ok", "ok"]
    (line,) = [record.message for record in caplog.records]
    assert line == "internal error while ending a relayed request"
