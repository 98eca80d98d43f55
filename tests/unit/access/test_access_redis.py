"""Buckets in Redis: its script counts as the buckets in memory do, and failures of Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest
import pytest_asyncio

from infergate.access.rate_limits import BucketCharge, LocalBuckets
from infergate.access.redis_rates import (
    CLOSED,
    LOCAL,
    OPEN,
    RETRY_SECONDS,
    RedisRateStore,
    redis_client,
)
from infergate.access.rejection import AccessRejected


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    fake_async_redis = fakeredis.FakeAsyncRedis()
    yield fake_async_redis
    await fake_async_redis.aclose()


def nothing() -> None:
    return


async def test_counts_equal_those_in_memory(client: Any) -> None:
    """The rates are too slow for the test's duration to matter."""
    store, memory = RedisRateStore(client, 5.0, CLOSED, nothing, LocalBuckets()), LocalBuckets()
    charges = [
        [BucketCharge("a", 1000.0, 3000.0)],
        [BucketCharge("a", 1000.0, 3000.0), BucketCharge("b", 500.0, 1000.0)],
        [BucketCharge("b", 600.0, 1000.0), BucketCharge("a", 1000.0, 3000.0)],
        [BucketCharge("a", 1000.0, 3000.0)],
        [BucketCharge("a", 1000.0, 3000.0), BucketCharge("b", 500.0, 1000.0)],
        [BucketCharge("c", 9000.0, 1000.0)],
        [BucketCharge("c", 1.0, 1000.0)],
        [BucketCharge("c", 9000.0, 1000.0)],
    ]
    for wants in charges:
        ours, theirs = memory.fill(wants, 0.0), await store.charge(wants, 0.0)
        if ours is None:
            assert theirs is None
        else:
            assert theirs is not None
            assert theirs.charge_index == ours.charge_index
            assert theirs.wait_seconds == pytest.approx(ours.wait_seconds, abs=5)


async def test_two_gateways_count_together_and_keys_end(client: Any) -> None:
    one, two = (RedisRateStore(client, 5.0, CLOSED, nothing, LocalBuckets()) for _ in range(2))
    wants = [BucketCharge("a", 100.0, 200.0)]
    assert await one.charge(wants, 0.0) is None
    assert await two.charge(wants, 7.0) is None  # their clocks do not matter
    full = await one.charge(wants, 0.0)
    assert full is not None
    assert full.wait_seconds == pytest.approx(100, abs=2)
    (key,) = await client.keys("*")
    assert 0 < await client.pttl(key) <= 200_001


class Broken:
    """A client whose script fails until it is restored."""

    def __init__(self, trouble: Exception | None) -> None:
        self.trouble = trouble
        self.requests = 0

    def register_script(self, script: str) -> Any:
        return self

    async def __call__(self, **_: Any) -> Any:
        self.requests += 1
        if self.trouble is not None:
            raise self.trouble
        return [0, b"0"]


@pytest.mark.parametrize("trouble", [ConnectionRefusedError(), TimeoutError()])
async def test_an_unavailable_redis_is_not_called_and_the_setting_applies(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "infergate.access")
    failed: list[int] = []
    wants = [BucketCharge("a", 1.0, 1.0)]
    for otherwise in (OPEN, LOCAL, CLOSED):
        caplog.clear()
        broken = Broken(trouble)
        store = RedisRateStore(broken, 1.0, otherwise, lambda: failed.append(1), LocalBuckets())
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(await store.charge(wants, 0.0))
            except AccessRejected:
                outcomes.append("closed")
        assert broken.requests == 1
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
        assert await store.charge(wants, RETRY_SECONDS) is None
        assert broken.requests == 2
        assert "again" in caplog.text
    assert len(failed) == 3


async def test_a_hanging_redis_times_out_quickly() -> None:
    class Silent(Broken):
        async def __call__(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    store = RedisRateStore(Silent(None), 0.01, OPEN, nothing, LocalBuckets())
    assert await asyncio.wait_for(store.charge([BucketCharge("a", 1.0, 1.0)], 0.0), 5) is None


async def test_an_unreachable_redis_is_unavailable(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://user:pass-word@127.0.0.1:{unused_tcp_port}/0"
    store = RedisRateStore(redis_client(url, 1.0), 1.0, CLOSED, nothing, LocalBuckets())
    with pytest.raises(AccessRejected):
        await store.charge([BucketCharge("a", 1.0, 1.0)], 0.0)
    await store.close()
    assert "pass-word" not in caplog.text
