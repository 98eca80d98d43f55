"""Responses in Redis: shared by gateways, obsolete after an invalidation, and not trusted."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest
import pytest_asyncio

from infergate.access.redis_rates import redis_client
from infergate.caching import redis_store
from infergate.caching.entries import encode
from infergate.caching.local_store import LocalStore
from infergate.caching.redis_store import RETRY_SECONDS, RedisStore
from infergate.caching.response_cache import CacheKey, ResponseCache
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferResponse
from infergate.core.tensor import Tensor, pack_bytes

DIGEST = hashlib.sha256(b"request").digest()
VALUE = encode(InferResponse("m", "1", outputs=(Tensor("y", Datatype.UINT8, (2,), b"ab"),)), {})


class Gateway:
    """A gateway's cache on a simulated clock."""

    def __init__(self, client: Any, wall_offset: float = 0.0) -> None:
        self.now = 1000.0
        self.failures = 0
        self.memory = LocalStore()
        self.memory.set_max_bytes(1 << 20)
        self.redis = RedisStore(
            client,
            0.2,
            1 << 16,
            self.fail,
            lambda: self.now,
            lambda: self.now + 1e6 + wall_offset,
        )
        self.cache = ResponseCache(self.memory, 1 << 16, self.redis, lambda: self.now)

    def fail(self) -> None:
        self.failures += 1

    def key(self) -> CacheKey:
        return self.cache.key(DIGEST, "own")

    async def look_up(self) -> bytes | None:
        stored = (await self.cache.get_remote(self.key())).stored
        return None if stored is None else stored.value

    async def store(self, value: bytes = VALUE, ttl: float = 60.0) -> None:
        """Look up the key, store ``value`` as after a miss, and wait for the write to Redis."""
        key = self.key()
        lookup = await self.cache.get_remote(key)
        await self.cache.put(key, lookup.tag, value, ttl)
        await asyncio.gather(*self.redis._writes)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    fake_async_redis = fakeredis.FakeAsyncRedis()
    yield fake_async_redis
    await fake_async_redis.aclose()


async def stored_key(client: Any) -> bytes:
    (key,) = [key for key in await client.keys() if b"epoch" not in key]
    return bytes(key)


async def test_another_gateway_uses_the_response_and_its_age(client: Any) -> None:
    first, second = Gateway(client), Gateway(client)
    await first.store()
    second.now += 20
    lookup = await second.cache.get_remote(second.key())
    assert lookup.stored is not None
    assert lookup.stored.value == VALUE
    assert lookup.stored.created_at == pytest.approx(1000.0)
    assert lookup.stored.expires_at == pytest.approx(1060.0)
    stored = await second.cache.get(second.key())
    assert stored is not None
    assert stored.value == VALUE


async def test_redis_drops_a_response_when_it_expires(client: Any) -> None:
    first = Gateway(client)
    await first.store(ttl=60.0)
    assert 59_000 < await client.pttl(await stored_key(client)) <= 60_000
    first.now += 60
    assert await first.look_up() is None


async def test_a_clock_that_is_behind_does_not_extend_the_lifetime(client: Any) -> None:
    first, slow_clock = Gateway(client), Gateway(client, wall_offset=-500.0)
    await first.store(ttl=60.0)
    lookup = await slow_clock.cache.get_remote(slow_clock.key())
    assert lookup.stored is not None
    assert (lookup.stored.created_at, lookup.stored.expires_at) == (1000.0, 1060.0)


async def test_an_invalidation_applies_to_all_gateways(client: Any) -> None:
    first, second = Gateway(client), Gateway(client)
    await first.store()
    assert await second.look_up() == VALUE
    await second.cache.invalidate("own")
    assert await first.look_up() is None
    assert await second.look_up() is None
    await first.store()
    assert await second.look_up() == VALUE


async def test_a_response_that_was_computed_before_an_invalidation_is_not_used(client: Any) -> None:
    first, second = Gateway(client), Gateway(client)
    await first.store()
    key = first.key()
    lookup = await first.redis.get(bytes(32), "own", key.epoch)
    await second.cache.invalidate("own")
    await first.cache.put(key, lookup.tag, VALUE, 60.0)
    await asyncio.gather(*first.redis._writes)
    assert await second.look_up() is None


async def test_an_invalidation_takes_effect_even_if_redis_was_unavailable(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Gateway(client), Gateway(client)
    await first.store()
    with monkeypatch.context() as patched:

        async def broken(*_: Any, **__: Any) -> None:
            raise OSError

        patched.setattr(client, "set", broken)
        await first.cache.invalidate("own")
    assert first.failures == 1
    assert await first.look_up() is None
    first.now += RETRY_SECONDS
    assert await first.look_up() is None
    assert await second.look_up() is None


async def test_a_lost_epoch_makes_older_responses_obsolete(client: Any) -> None:
    first = Gateway(client)
    await first.store()
    for key in await client.keys():
        if b"epoch" in key:
            await client.delete(key)
    assert await first.look_up() is None
    assert await first.look_up() is None


BYTES = Tensor("y", Datatype.BYTES, (1,), pack_bytes([b"a"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda value, _: value[:-1],
        lambda value, _: value + b"x",
        lambda value, _: value[:-1] + b"c",
        lambda value, _: b"",
        lambda value, _: b"x" * 70_000,
        lambda value, _: b"x" * 200_000,
        lambda value, _: struct.pack("<d", 1.0) + value[8:],
        lambda value, signed: signed(struct.pack("<dd", -math.inf, math.inf) + value[16:32], VALUE),
        lambda value, signed: signed(struct.pack("<dd", -1e300, 1e300) + value[16:32], VALUE),
        lambda value, signed: signed(struct.pack("<dd", math.nan, 1e9) + value[16:32], VALUE),
        lambda value, signed: signed(value[:32], b"\0\0\0\2[]"),
        lambda value, signed: signed(value[:32], VALUE.replace(b"[2]", b"[3]")),
    ],
)
async def test_a_value_that_another_program_has_changed_is_a_miss(client: Any, change: Any) -> None:
    def signed(head: bytes, content: bytes) -> bytes:
        return head + hashlib.sha256(head + content).digest() + content

    first = Gateway(client)
    await first.store()
    key = await stored_key(client)
    await client.set(key, change(await client.get(key), signed))
    assert await first.look_up() is None
    assert first.failures == 0


async def test_a_key_of_another_type_is_a_miss(client: Any) -> None:
    first = Gateway(client)
    await first.store()
    key = await stored_key(client)
    await client.delete(key)
    await client.lpush(key, b"x")
    assert await first.look_up() is None


async def test_an_unavailable_redis_is_a_miss_and_is_not_queried_for_one_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    client = redis_client("redis://127.0.0.1:1/0", 0.2)  # no server listens on port 1
    first = Gateway(client)
    for _ in range(3):
        lookup = await first.cache.get_remote(first.key())
        assert (lookup.stored, lookup.tag) == (None, b"")
    assert first.failures == 1
    first.now += RETRY_SECONDS
    assert await first.look_up() is None
    assert first.failures == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await first.redis.close()


async def test_the_bytes_of_concurrent_writes_are_bounded(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_WRITE_BYTES", 2 * len(VALUE))
    first = Gateway(client)
    await first.store()
    key = first.key()
    tag = (await first.cache.get_remote(key)).tag
    for number in range(5):
        other = CacheKey(bytes([number]) * 32, "own", 0)
        await first.cache.put(other, tag, VALUE, 60.0)
    assert len(first.redis._writes) == 2
    await asyncio.gather(*first.redis._writes)
    assert len(await client.keys()) == 4  # two writes, the first response and the epoch
