"""One asks, the others wait; what is learnt is believed for a while."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from infergate.backends.single_flight import SingleFlightCache
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext


def call(seconds: float = 60.0) -> RequestContext:
    return RequestContext("test", time.monotonic() + seconds)


class Message:
    """Stands for a long one."""


class Server:
    """Answers 1, 2, 3 … when it is let, each for ``lifetime`` seconds; its clock stands still."""

    def __init__(self, lifetime: float = 60.0) -> None:
        self.now = 100.0
        self.lifetime = lifetime
        self.asked = 0
        self.calls: list[RequestContext] = []
        self.error: GatewayError | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.remembered: SingleFlightCache[int] = SingleFlightCache(self.answer, lambda: self.now)

    async def answer(self, context: RequestContext) -> tuple[int, float]:
        self.asked += 1
        number = self.asked
        self.calls.append(context)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return number, self.lifetime

    def get(self, seconds: float = 60.0, *, newer: bool = False) -> asyncio.Task[int]:
        return asyncio.create_task(self.remembered.get(call(seconds), refresh=newer))


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_is_asked_once_and_believed_for_its_lifetime() -> None:
    server = Server(lifetime=60.0)
    assert server.remembered.cached is None
    assert server.remembered.is_empty
    assert await server.get() == 1
    server.now += 59.9
    assert await server.get() == 1
    assert server.remembered.cached == 1
    server.now += 0.1
    assert server.remembered.cached is None
    assert await server.get() == 2
    assert not server.remembered.is_empty


async def test_one_asks_for_all_who_wait() -> None:
    server = Server()
    server.open.clear()
    waiting = [server.get() for _ in range(10)]
    await turns()
    server.open.set()
    assert await asyncio.gather(*waiting) == [1] * 10
    assert server.asked == 1


async def test_an_error_is_told_to_all_who_wait_and_not_remembered() -> None:
    server = Server()
    server.open.clear()
    server.error = GatewayError(Kind.NOT_FOUND, "no such model")
    waiting = [server.get() for _ in range(10)]
    await turns()
    server.open.set()
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert each is server.error
    assert server.asked == 1
    assert server.remembered.is_empty
    server.error = None
    assert await server.get() == 2


async def test_an_error_keeps_nothing_of_those_who_are_told_it() -> None:
    server = Server()
    kept: list[weakref.ref[Message]] = []

    async def asking() -> None:
        message = Message()
        kept.append(weakref.ref(message))
        await server.remembered.get(call())

    async def away(context: RequestContext) -> tuple[int, float]:
        await asyncio.sleep(0)
        raise GatewayError(Kind.CONNECT, "down")

    server.remembered = SingleFlightCache(away)
    gc.collect()
    gc.disable()
    try:
        told = await asyncio.gather(*(asking() for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in told] == ["down"] * 3
        del told
        await turns()
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()


async def test_where_the_one_that_asks_goes_away_the_next_asks() -> None:
    server = Server()
    server.open.clear()
    first, *others = (server.get() for _ in range(4))
    await turns()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert server.asked == 2
    server.open.set()
    assert await asyncio.gather(*others) == [2] * 3
    assert server.asked == 2


async def test_one_that_waits_may_go_away() -> None:
    server = Server()
    server.open.clear()
    asking, waiting = server.get(), server.get()
    await turns()
    waiting.cancel()
    await turns()
    server.open.set()
    assert await asking == 1
    assert server.asked == 1


async def test_a_deadline_holds_for_the_one_that_waits_alone() -> None:
    server = Server()
    server.open.clear()
    asking = server.get()
    await turns()
    with pytest.raises(TimeoutError):
        await server.get(0.01)
    server.open.set()
    assert await asking == 1


async def test_who_runs_out_of_time_while_asking_has_learnt_nothing_for_others() -> None:
    server = Server()
    server.error = GatewayError(Kind.TIMEOUT, "late")
    server.open.clear()
    first = server.get()
    await turns()
    second = server.get()
    await turns()
    server.open.set()
    with pytest.raises(GatewayError, match="late"):
        await first
    with pytest.raises(GatewayError, match="late"):
        await second
    assert server.asked == 2


async def test_a_question_that_has_less_time_than_its_call_is_lost_for_all() -> None:
    server = Server()
    ask: Callable[[RequestContext], Awaitable[tuple[int, float]]] = server.answer

    async def impatient(own: RequestContext) -> tuple[int, float]:
        own.shorten_deadline(time.monotonic() + 1)
        return await ask(own)

    remembered: SingleFlightCache[int] = SingleFlightCache(impatient)
    server.error = GatewayError(Kind.TIMEOUT, "silent")
    server.open.clear()
    waiting = [asyncio.create_task(remembered.get(call())) for _ in range(3)]
    await turns()
    server.open.set()
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert each is server.error
    assert server.asked == 1


async def test_the_question_has_a_call_of_its_own() -> None:
    server = Server()
    asked = call()
    await server.remembered.get(asked)
    server.calls[0].response_headers = {"x": "y"}
    server.calls[0].shorten_deadline(0.0)
    assert asked.response_headers == {}
    assert asked.deadline != 0.0


@pytest.mark.parametrize(("age", "expected"), [(0.0, 1), (1.0, 1), (1.1, 2)])
async def test_newer_is_of_the_last_second(age: float, expected: int) -> None:
    server = Server()
    await server.get()
    server.now += age
    assert await server.get(newer=True) == expected
    assert await server.get() == expected


async def test_all_who_want_it_newer_share_one_question() -> None:
    server = Server()
    await server.get()
    server.now += 30
    server.open.clear()
    waiting = [server.get(newer=True) for _ in range(5)]
    await turns()
    server.now += 10  # it takes its time
    server.open.set()
    assert await asyncio.gather(*waiting) == [2] * 5
    assert server.asked == 2


async def test_newer_is_not_what_was_asked_long_before() -> None:
    """An answer on its way tells of the time when it was asked for."""
    server = Server()
    server.open.clear()
    first = server.get()
    await turns()
    server.now += 5
    second = server.get(newer=True)
    await turns()
    server.open.set()
    assert await asyncio.gather(first, second) == [1, 2]


async def test_what_is_doubted_is_asked_again_when_it_is_a_second_old() -> None:
    server = Server()
    await server.get()
    for _ in range(3):
        server.remembered.mark_doubtful()
        server.now += 0.3
        assert await server.get() == 1
    server.now += 0.2
    assert await server.get() == 2


async def test_what_is_known_stays_where_asking_for_newer_fails() -> None:
    server = Server()
    await server.get()
    server.now += 5
    server.error = GatewayError(Kind.CONNECT, "down")
    answers: list[Any] = await asyncio.gather(server.get(newer=True), return_exceptions=True)
    assert answers == [server.error]
    assert await server.get() == 1
