"""Rate buckets in Redis count like buckets in memory; ``when_unavailable`` applies on failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

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


def closed_store(client: Any) -> RedisRateStore:
    return RedisRateStore(client, 5.0, CLOSED, Mock(), LocalBuckets())


async def test_counts_equal_those_in_memory(client: Any) -> None:
    """The rates are too slow for the test's duration to matter."""
    store, memory = closed_store(client), LocalBuckets()
    a, b = BucketCharge("a", 1000.0, 3000.0), BucketCharge("b", 500.0, 1000.0)
    larger = b._replace(cost=600.0)
    huge, tiny = BucketCharge("c", 9000.0, 1000.0), BucketCharge("c", 1.0, 1000.0)
    for charges in ([a], [a, b], [larger, a], [a], [a, b], [huge], [tiny], [huge]):
        in_memory, in_redis = memory.fill(charges, 0.0), await store.charge(charges, 0.0)
        expected = in_memory and (
            in_memory.charge_index,
            pytest.approx(in_memory.wait_seconds, abs=5),
        )
        assert in_redis == expected


async def test_two_gateways_share_a_bucket_and_its_key_expires(client: Any) -> None:
    first, second = closed_store(client), closed_store(client)
    charges = [BucketCharge("a", 100.0, 200.0)]
    assert await first.charge(charges, 0.0) is None
    assert await second.charge(charges, 7.0) is None  # the gateways' clocks may differ
    exceeded = await first.charge(charges, 0.0)
    assert exceeded is not None
    assert exceeded.wait_seconds == pytest.approx(100, abs=2)
    (key,) = await client.keys("*")
    assert 0 < await client.pttl(key) <= 200_001


class FailingClient:
    """A client whose script raises ``error`` unless it is None."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.requests = 0

    def register_script(self, script: str) -> Any:
        return self

    async def __call__(self, **_: Any) -> Any:
        self.requests += 1
        if self.error is not None:
            raise self.error
        return [0, b"0"]


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError()])
async def test_a_failed_redis_is_retried_later_and_when_unavailable_applies(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "infergate.access")
    on_failure = Mock()
    charges = [BucketCharge("a", 1.0, 1.0)]
    for fallback in (OPEN, LOCAL, CLOSED):
        caplog.clear()
        client = FailingClient(error)
        store = RedisRateStore(client, 1.0, fallback, on_failure, LocalBuckets())
        outcomes: list[object] = []
        for _ in range(3):
            try:
                outcomes.append(await store.charge(charges, 0.0))
            except AccessRejected:
                outcomes.append("closed")
        assert client.requests == 1
        assert (
            outcomes
            == {
                OPEN: [None] * 3,
                LOCAL: [None, *[(0, pytest.approx(1.0))] * 2],
                CLOSED: ["closed"] * 3,
            }[fallback]
        )
        assert len(caplog.records) == 1
        client.error = None
        assert await store.charge(charges, RETRY_SECONDS) is None
        assert client.requests == 2
        assert "again" in caplog.text
    assert on_failure.call_count == 3


async def test_a_hanging_redis_times_out_quickly() -> None:
    class HangingClient(FailingClient):
        async def __call__(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    store = RedisRateStore(HangingClient(None), 0.01, OPEN, Mock(), LocalBuckets())
    assert await asyncio.wait_for(store.charge([BucketCharge("a", 1.0, 1.0)], 0.0), 5) is None


async def test_an_unreachable_redis_rejects_requests_and_logs_no_password(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://user:pass-word@127.0.0.1:{unused_tcp_port}/0"
    store = closed_store(redis_client(url, 1.0))
    with pytest.raises(AccessRejected):
        await store.charge([BucketCharge("a", 1.0, 1.0)], 0.0)
    await store.close()
    assert "pass-word" not in caplog.text
