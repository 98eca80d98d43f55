"""Tests clients that disconnect at any moment: a request is cancelled at each of its awaits, in
every pipeline. No task, no slot of a concurrency limit and no active request at an endpoint may
remain. The request is counted once, and the next request is served."""

from __future__ import annotations

import asyncio
import json
import socket
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from faults.load import STREAM, build_wire_request, streamed
from faults.replicas import QUIET, Replica, as_before, replicas
from faults.watch import sample
from infergate.config.schema import Config
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest
from infergate.observe.metrics import Metrics
from infergate.runtime.assemble import RunningGateway, assemble
from infergate.runtime.worker_group import WorkerGroup
from infergate.transport.grpc.multiplexing import multiplex
from infergate.transport.server.admission import Admission
from waiting import until

MAX_STEPS = 60
"""A number of awaits that no request reaches."""
ROUTES: dict[str, dict[str, Any]] = {
    "plain": {},
    "translated": {"rewrite": {"model": "identity", "inputs": {"no": "none"}}},
    "retried": {"idempotent": True, "retry": {"times": 2, "per_try_timeout": "5s"}},
    "refused": {"backend": "half"},
    "hedged": {"idempotent": True, "hedge": {"after": "1ms"}},
    "queued": {"backend": "narrow"},
    "split": {"split": ({"backend": "other", "percent": 50},)},
    "fallback": {"backend": "away", "fallback": "one"},
    "mirrored": {"mirror": {"backend": "other"}},
    "stream": {"backend": "streams", "rewrite": {"model": "repeat"}},
}
IDENTITY = {"model": "identity"}
LOCAL = "127.0.0.1"
ANYWHERE = {"address": f"{LOCAL}:0"}
SLOW = 0.01
"""Seconds that a server takes, so that requests have to wait."""


@types.coroutine
def cancel_at(coroutine: Coroutine[Any, Any, Any], position: int) -> Generator[Any, Any, bool]:
    """Run ``coroutine``, and cancel the task at await number ``position``. Return whether it
    reached that await."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    awaits = 0
    resume: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731
    while True:
        try:
            awaited = resume()
        except StopIteration:
            return awaits >= position
        awaits += 1
        if awaits == position:
            loop.call_soon(task.cancel)
        try:
            sent = yield awaited
        except BaseException as error:  # noqa: BLE001 - thrown into the coroutine
            resume = lambda error=error: coroutine.throw(error)  # noqa: E731
        else:
            resume = lambda sent=sent: coroutine.send(sent)  # noqa: E731


@dataclass
class Harness:
    running: RunningGateway
    metrics: Metrics
    frontend: str

    @property
    def _app(self) -> Any:
        return self.running._active.listeners[self.frontend].app

    async def send_request(self, route: str) -> str:
        """Send one request, read its complete response, and return its outcome."""
        context = RequestContext("test")
        if route == "stream":
            await (self._events(context) if self.frontend == "http" else self._stream(context))
            return context.record.outcome
        wire = build_wire_request({"http": "v2-rest", "grpc": "v2-grpc"}[self.frontend], route)
        await self._app.respond(wire, context)
        return context.record.outcome

    async def _events(self, context: RequestContext) -> None:
        body = json.dumps({"IN": [1, 2, 3], "DELAY": [2] * 3}).encode()
        path = "/v2/models/stream/generate_stream"
        response = await self._app.respond(HttpRequest("POST", path, body=[body]), context)
        assert response.body_stream is not None, response
        try:
            while await response.body_stream.next() is not None:
                pass
        finally:
            await response.body_stream.close()

    async def _stream(self, context: RequestContext) -> None:
        async def messages() -> AsyncIterator[bytes]:
            for _ in range(2):
                yield streamed("stream", 3, 2)

        conversation = self._app.request_streams[STREAM](context)
        responses = multiplex(conversation, messages(), Admission(DEFAULT_LIMITS))
        async with aclosing(responses):
            assert len([each async for each in responses]) >= 6

    def counted(self) -> float:
        """Return the number of requests that have ended."""
        return sample(self.metrics.text().decode(), "infergate_requests_total")

    def active_requests(self) -> int:
        """Return the number of active requests at endpoints plus the concurrency slots in use."""
        count = 0
        for backend in self.running.gateway.backends:
            remote: Any = backend
            count += sum(each.active for each in remote.endpoint_stats())
            stats = remote.concurrency_stats
            count += 0 if stats is None else stats.in_use
        return count


@asynccontextmanager
async def started_harness(
    servers: list[Replica], frontend: str, transport: str, engine: str, profile: str | None
) -> AsyncIterator[Harness]:
    protocol = {"http": "v2-rest", "grpc": "v2-grpc"}[transport]

    def backend(*urls: str, **more: Any) -> dict[str, Any]:
        no_ejection = {"health": {"checks": "never"}, "outliers": {"consecutive_errors": 0}}
        fields = {
            "protocol": protocol,
            "endpoints": urls,
            "profile": profile,
            **no_ejection,
            **more,
        }
        return {key: value for key, value in fields.items() if value is not None}

    with socket.socket() as unused:
        unused.bind((LOCAL, 0))  # never listens
        urls = [each.url(transport) for each in servers]
        unreachable = f"{transport}://{LOCAL}:{unused.getsockname()[1]}"
        routes = [
            {"model": name, "backend": "one", "rewrite": IDENTITY, **more}
            for name, more in ROUTES.items()
        ]
        config = Config.model_validate(
            {
                **QUIET,
                "engine": engine,
                "listeners": {"http": ANYWHERE, "grpc": ANYWHERE, "admin": None},
                "backends": {
                    "one": backend(*urls),
                    "other": backend(*urls),
                    "half": backend(unreachable, urls[0]),
                    "narrow": backend(urls[0], limits={"max_requests": 1, "max_queue": 9}),
                    "away": backend(unreachable),
                    "streams": backend(*urls, profile="triton"),
                },
                "routes": tuple(routes),
            }
        )
        metrics = Metrics()
        async with as_before(engine):
            running = assemble(config, group=WorkerGroup(metrics))
            await running.start()
            try:
                yield Harness(running, metrics, frontend)
            finally:
                await running.stop(1)


@asynccontextmanager
async def two_slow_servers() -> AsyncIterator[list[Replica]]:
    async with replicas(LOCAL, LOCAL) as servers:
        for each in servers:
            each.backend.seconds = SLOW
        yield servers


async def cancel_one_of_two(harness: Harness, route: str, position: int, *, is_first: bool) -> bool:
    """Send two requests, and cancel one of them at an await. With ``is_first``, the cancelled
    request starts before the other one. Return whether the request reached that await."""
    tasks = len(asyncio.all_tasks())
    cancelled = cancel_at(harness.send_request(route), position)
    other = harness.send_request(route)
    pair = (cancelled, other) if is_first else (other, cancelled)
    cancelled_task, other_task = [asyncio.create_task(each) for each in pair][
        :: 1 if is_first else -1
    ]
    outcome = (await asyncio.gather(cancelled_task, return_exceptions=True))[0]
    assert isinstance(outcome, bool | asyncio.CancelledError), outcome
    assert await other_task == "ok", "the other request failed"
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
    await until(lambda: harness.active_requests() == 0, "no request is in progress")
    return outcome is not False


async def count_cancellable_awaits(harness: Harness, route: str) -> int:
    """Cancel a request at each of its awaits in turn. Return the number of awaits."""
    assert await harness.send_request(route) == "ok"
    await until(lambda: harness.active_requests() == 0, "all requests have ended")
    requests_per_call = 2 if route == "stream" and harness.frontend == "grpc" else 1
    for position in range(1, MAX_STEPS):
        before = harness.counted()
        is_reached = await cancel_one_of_two(harness, route, position, is_first=False)
        ended = harness.counted() - before
        assert requests_per_call < ended <= 2 * requests_per_call, "a request was miscounted"
        if not is_reached:
            return position - 1
    raise AssertionError(f"the request did not end within {MAX_STEPS} awaits")


@pytest.mark.parametrize(
    ("frontend", "transport", "engine"),
    [("http", "http", "own"), ("grpc", "grpc", "own"), ("http", "grpc", "compat")],
)
async def test_cancelling_at_any_await_leaves_nothing_behind(
    frontend: str, transport: str, engine: str
) -> None:
    async with two_slow_servers() as servers:
        async with started_harness(servers, frontend, transport, engine, "infergate") as harness:
            for route in ROUTES:
                assert await count_cancellable_awaits(harness, route) >= 1, route
            assert all(each.connections() <= 8 for each in servers)
        if engine == "own":  # grpcio closes its connections at any time
            await until(
                lambda: all(each.connections() == 0 for each in servers),
                "all connections are closed",
            )


@pytest.mark.parametrize(("frontend", "transport"), [("http", "http"), ("grpc", "grpc")])
async def test_cancelling_the_first_request_leaves_nothing_behind(
    frontend: str, transport: str
) -> None:
    """The first request connects and detects the server. A concurrent request detects the server as
    well."""
    async with two_slow_servers() as servers:
        for position in range(1, MAX_STEPS):
            async with started_harness(servers, frontend, transport, "own", None) as harness:
                is_reached = await cancel_one_of_two(harness, "translated", position, is_first=True)
                assert 1 <= harness.counted() <= 2, "a request was miscounted"
            await until(
                lambda: all(each.connections() == 0 for each in servers),
                "all connections are closed",
            )
            if not is_reached:
                return
        raise AssertionError(f"the request did not end within {MAX_STEPS} awaits")
