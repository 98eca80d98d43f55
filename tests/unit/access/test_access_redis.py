"""Buckets in Redis: that its script counts as memory does, and what comes of it when it is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest
import pytest_asyncio

from infergate.access.rates import Buckets, StoreAway, Want
from infergate.access.redis_rates import ALONE, CLOSED, LOCAL, OPEN, InRedis, redis_at


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    made = fakeredis.FakeAsyncRedis()
    yield made
    await made.aclose()


def nothing() -> None:
    return


async def test_it_counts_as_memory_does(client: Any) -> None:
    """The rates are so slow that the time which a test takes does not matter."""
    store, memory = InRedis(client, 5.0, CLOSED, nothing, Buckets()), Buckets()
    asked = [
        [Want("a", 1000.0, 3000.0)],
        [Want("a", 1000.0, 3000.0), Want("b", 500.0, 1000.0)],
        [Want("b", 600.0, 1000.0), Want("a", 1000.0, 3000.0)],
        [Want("a", 1000.0, 3000.0)],
        [Want("a", 1000.0, 3000.0), Want("b", 500.0, 1000.0)],
        [Want("c", 9000.0, 1000.0)],
        [Want("c", 1.0, 1000.0)],
        [Want("c", 9000.0, 1000.0)],
    ]
    for wants in asked:
        ours, theirs = memory.fill(wants, 0.0), await store.take(wants, 0.0)
        if ours is None:
            assert theirs is None
        else:
            assert theirs is not None
            assert theirs.which == ours.which
            assert theirs.wait == pytest.approx(ours.wait, abs=5)


async def test_two_gateways_count_together_and_keys_end(client: Any) -> None:
    one, two = (InRedis(client, 5.0, CLOSED, nothing, Buckets()) for _ in range(2))
    wants = [Want("a", 100.0, 200.0)]
    assert await one.take(wants, 0.0) is None
    assert await two.take(wants, 7.0) is None  # their clocks do not matter
    full = await one.take(wants, 0.0)
    assert full is not None
    assert full.wait == pytest.approx(100, abs=2)
    (key,) = await client.keys("*")
    assert 0 < await client.pttl(key) <= 200_001


class Broken:
    """A client whose script fails, until it does not."""

    def __init__(self, trouble: Exception | None) -> None:
        self.trouble = trouble
        self.asked = 0

    def register_script(self, script: str) -> Any:
        return self

    async def __call__(self, **_: Any) -> Any:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return [0, b"0"]


@pytest.mark.parametrize("trouble", [ConnectionRefusedError(), TimeoutError()])
async def test_away_it_is_left_alone_and_the_operators_choice_holds(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "infergate.access")
    failed: list[int] = []
    wants = [Want("a", 1.0, 1.0)]
    for otherwise in (OPEN, LOCAL, CLOSED):
        caplog.clear()
        broken = Broken(trouble)
        store = InRedis(broken, 1.0, otherwise, lambda: failed.append(1), Buckets())
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(await store.take(wants, 0.0))
            except StoreAway:
                outcomes.append("closed")
        assert broken.asked == 1
        match otherwise:
            case "open":
                assert outcomes == [None] * 3
            case "local":
                assert outcomes[0] is None
                assert outcomes[1] == outcomes[2] == (0, pytest.approx(1.0))
            case "closed":
                assert outcomes == ["closed"] * 3
        assert len(caplog.records) == 1
        broken.trouble = None
        assert await store.take(wants, ALONE) is None
        assert broken.asked == 2
        assert "again" in caplog.text
    assert len(failed) == 3


async def test_one_that_does_not_answer_is_waited_for_a_moment_only() -> None:
    class Silent(Broken):
        async def __call__(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    store = InRedis(Silent(None), 0.01, OPEN, nothing, Buckets())
    assert await asyncio.wait_for(store.take([Want("a", 1.0, 1.0)], 0.0), 5) is None


async def test_nobody_there_is_one_that_is_away(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://user:pass-word@127.0.0.1:{unused_tcp_port}/0"
    store = InRedis(redis_at(url, 1.0), 1.0, CLOSED, nothing, Buckets())
    with pytest.raises(StoreAway):
        await store.take([Want("a", 1.0, 1.0)], 0.0)
    await store.close()
    assert "pass-word" not in caplog.text
