"""SingleFlightCache: one caller fetches a value, the others wait, and the value is cached."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from infergate.backends.single_flight import SingleFlightCache
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from reference_cycles import garbage_collector_disabled

pytestmark = pytest.mark.usefixtures("virtual_time")


def call(seconds: float = 60.0) -> RequestContext:
    return RequestContext("test", time.monotonic() + seconds)


class Message:
    """A request message; a weak reference shows whether it is freed."""


class Server:
    """Returns 1, 2, 3 … once ``open`` is set, valid for ``lifetime`` seconds. Tests set ``now``."""

    def __init__(self, lifetime: float = 60.0) -> None:
        self.now = 100.0
        self.lifetime = lifetime
        self.requests = 0
        self.calls: list[RequestContext] = []
        self.error: GatewayError | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.cache: SingleFlightCache[int] = SingleFlightCache(self.fetch_value, lambda: self.now)

    async def fetch_value(self, context: RequestContext) -> tuple[int, float]:
        self.requests += 1
        number = self.requests
        self.calls.append(context)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return number, self.lifetime

    def get(self, seconds: float = 60.0, *, refresh: bool = False) -> asyncio.Task[int]:
        return asyncio.create_task(self.cache.get(call(seconds), refresh=refresh))


async def run_pending() -> None:
    """Run every task until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_value_is_fetched_once_and_cached_for_its_lifetime() -> None:
    server = Server(lifetime=60.0)
    assert server.cache.cached is None
    assert server.cache.is_empty
    assert await server.get() == 1
    server.now += 59.9
    assert await server.get() == 1
    assert server.cache.cached == 1
    server.now += 0.1
    assert server.cache.cached is None
    assert await server.get() == 2
    assert not server.cache.is_empty


async def test_one_fetch_serves_all_waiters() -> None:
    server = Server()
    server.open.clear()
    tasks = [server.get() for _ in range(10)]
    await run_pending()
    server.open.set()
    assert await asyncio.gather(*tasks) == [1] * 10
    assert server.requests == 1


async def test_an_error_reaches_all_waiters_and_is_not_cached() -> None:
    server = Server()
    server.open.clear()
    server.error = GatewayError(Kind.NOT_FOUND, "no such model")
    tasks = [server.get() for _ in range(10)]
    await run_pending()
    server.open.set()
    for each in await asyncio.gather(*tasks, return_exceptions=True):
        assert each is server.error
    assert server.requests == 1
    assert server.cache.is_empty
    server.error = None
    assert await server.get() == 2


async def test_an_error_holds_no_references_to_its_waiters() -> None:
    server = Server()
    references: list[weakref.ref[Message]] = []

    async def fetch() -> None:
        message = Message()
        references.append(weakref.ref(message))
        await server.cache.get(call())

    async def unreachable(context: RequestContext) -> tuple[int, float]:
        await asyncio.sleep(0)
        raise GatewayError(Kind.CONNECT, "down")

    server.cache = SingleFlightCache(unreachable)
    with garbage_collector_disabled():
        errors = await asyncio.gather(*(fetch() for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in errors] == ["down"] * 3
        del errors
        await run_pending()
        assert [each() for each in references] == [None] * 3


async def test_a_cancelled_leader_is_replaced_by_a_waiter() -> None:
    server = Server()
    server.open.clear()
    first, *others = (server.get() for _ in range(4))
    await run_pending()
    first.cancel()
    await run_pending()
    assert first.cancelled()
    assert server.requests == 2
    server.open.set()
    assert await asyncio.gather(*others) == [2] * 3
    assert server.requests == 2


async def test_a_waiter_may_be_cancelled() -> None:
    server = Server()
    server.open.clear()
    leader, waiter = server.get(), server.get()
    await run_pending()
    waiter.cancel()
    await run_pending()
    server.open.set()
    assert await leader == 1
    assert server.requests == 1


async def test_a_deadline_ends_only_its_own_wait() -> None:
    server = Server()
    server.open.clear()
    fetch = server.get()
    await run_pending()
    with pytest.raises(TimeoutError):
        await server.get(0.01)
    server.open.set()
    assert await fetch == 1


async def test_a_leading_callers_timeout_is_not_shared() -> None:
    server = Server()
    server.error = GatewayError(Kind.TIMEOUT, "late")
    server.open.clear()
    first = server.get()
    await run_pending()
    second = server.get()
    await run_pending()
    server.open.set()
    with pytest.raises(GatewayError, match="late"):
        await first
    with pytest.raises(GatewayError, match="late"):
        await second
    assert server.requests == 2


async def test_a_fetch_timeout_fails_all_waiters() -> None:
    server = Server()
    fetch_value: Callable[[RequestContext], Awaitable[tuple[int, float]]] = server.fetch_value

    async def with_deadline(context: RequestContext) -> tuple[int, float]:
        context.shorten_deadline(time.monotonic() + 1)
        return await fetch_value(context)

    cache: SingleFlightCache[int] = SingleFlightCache(with_deadline)
    server.error = GatewayError(Kind.TIMEOUT, "silent")
    server.open.clear()
    tasks = [asyncio.create_task(cache.get(call())) for _ in range(3)]
    await run_pending()
    server.open.set()
    for each in await asyncio.gather(*tasks, return_exceptions=True):
        assert each is server.error
    assert server.requests == 1


async def test_the_fetch_has_its_own_context() -> None:
    server = Server()
    context = call()
    await server.cache.get(context)
    server.calls[0].response_headers = {"x": "y"}
    server.calls[0].shorten_deadline(0.0)
    assert context.response_headers == {}
    assert context.deadline != 0.0


@pytest.mark.parametrize(("age", "expected"), [(0.0, 1), (1.0, 1), (1.1, 2)])
async def test_a_refresh_accepts_values_of_the_last_second(age: float, expected: int) -> None:
    server = Server()
    await server.get()
    server.now += age
    assert await server.get(refresh=True) == expected
    assert await server.get() == expected


async def test_callers_that_need_a_refresh_share_one_fetch() -> None:
    server = Server()
    await server.get()
    server.now += 30
    server.open.clear()
    tasks = [server.get(refresh=True) for _ in range(5)]
    await run_pending()
    server.now += 10  # the fetch takes a while
    server.open.set()
    assert await asyncio.gather(*tasks) == [2] * 5
    assert server.requests == 2


async def test_a_refresh_does_not_use_an_older_pending_fetch() -> None:
    """The age of a value counts from the start of its fetch."""
    server = Server()
    server.open.clear()
    first = server.get()
    await run_pending()
    server.now += 5
    second = server.get(refresh=True)
    await run_pending()
    server.open.set()
    assert await asyncio.gather(first, second) == [1, 2]


async def test_invalidated_values_are_fetched_again_after_a_second() -> None:
    server = Server()
    await server.get()
    for _ in range(3):
        server.cache.mark_stale()
        server.now += 0.3
        assert await server.get() == 1
    server.now += 0.2
    assert await server.get() == 2


async def test_a_failed_refresh_keeps_the_cached_value() -> None:
    server = Server()
    await server.get()
    server.now += 5
    server.error = GatewayError(Kind.CONNECT, "down")
    results: list[Any] = await asyncio.gather(server.get(refresh=True), return_exceptions=True)
    assert results == [server.error]
    assert await server.get() == 1
