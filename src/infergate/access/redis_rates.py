"""Rate-limit buckets that several gateways share in Redis.

One call of a script per request charges all buckets of the request, by the same rules as
``rate_limits.LocalBuckets``. The script uses the clock of Redis, so the gateways' clocks need not
agree.

If a call to Redis fails or times out, Redis is not queried for one second. Meanwhile the configured
fallback applies: ``local`` (each gateway counts for itself), ``open`` (no limits) or ``closed``
(requests that match a rate limit are rejected)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from infergate.access.rate_limits import BucketCharge, ExceededLimit, RateBuckets
from infergate.access.rejection import rate_store_unavailable
from infergate.core.log_events import REDIS_AVAILABLE, REDIS_UNAVAILABLE

_log = logging.getLogger("infergate.access")

LOCAL: Final = "local"
OPEN: Final = "open"
CLOSED: Final = "closed"
RETRY_SECONDS: Final = 1.0
"""Seconds for which Redis is not queried after a failure."""
_CONNECTIONS: Final = 16
_KEY_PREFIX: Final = "infergate:{rates}:"
"""The prefix of the buckets' keys. In a cluster, the braces keep all keys on one node, because a
script can use only one node."""

SCRIPT: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local empty, full, worst = {}, 0, 0
for i, key in ipairs(KEYS) do
  local cost, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local level = math.max(tonumber(redis.call('GET', key) or '0') - now, 0)
  empty[i] = now + level + cost
  if level > 0.000001 and level + cost > burst + 0.000001 then
    local wait = level
    if cost <= burst then wait = level + cost - burst end
    if wait > worst then full, worst = i, wait end
  end
end
if full > 0 then return {full, string.format('%.6f', worst)} end
for i, key in ipairs(KEYS) do
  local lifetime = math.ceil((empty[i] - now) * 1000) + 1
  redis.call('SET', key, string.format('%.6f', empty[i]), 'PX', lifetime)
end
return {0, '0'}
"""
"""KEYS are buckets; ARGV holds the cost and burst of each charge. The script returns 0 and 0 if all
buckets were charged. Otherwise it returns the 1-based index of the bucket with the longest wait,
and the seconds to wait."""


def redis_client(url: str, timeout: float) -> Any:
    """Return a client of the Redis at ``url`` that does not retry; ``timeout`` is in seconds."""
    pool: Any = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


class RedisRateStore:
    """A ``RateStore`` whose buckets are in Redis."""

    def __init__(
        self,
        client: Any,
        timeout: float,
        fallback: str,
        on_failure: Callable[[], None],
        local: RateBuckets,
    ) -> None:
        """``client`` is a ``redis.asyncio.Redis``; ``timeout`` is in seconds; ``fallback`` is
        LOCAL, OPEN or CLOSED. ``on_failure`` is called when a call to Redis fails; ``local``
        holds the buckets of this gateway."""
        self._redis: Final[Any] = client
        self._script: Final[Any] = client.register_script(SCRIPT)
        self._timeout: Final = timeout
        self._fallback: Final = fallback
        self._on_failure: Final = on_failure
        self._local: Final = local
        self._retry_at = 0.0
        self._is_unavailable = False

    async def charge(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        if now < self._retry_at:
            return self._charge_fallback(charges, now)
        keys = [_KEY_PREFIX + charge.bucket for charge in charges]
        arguments = [argument for charge in charges for argument in (charge.cost, charge.burst)]
        try:
            async with asyncio.timeout(self._timeout):
                index, wait = await self._script(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self._on_failure()
            self._retry_at = now + RETRY_SECONDS
            if not self._is_unavailable:
                self._is_unavailable = True
                text = "Redis is unavailable (%s); rate limits use the fallback '%s'"
                _log.error(text, type(error).__name__, self._fallback, extra=REDIS_UNAVAILABLE)
            return self._charge_fallback(charges, now)
        if self._is_unavailable:
            self._is_unavailable = False
            _log.info("Redis is available again; rate limits use Redis", extra=REDIS_AVAILABLE)
        return ExceededLimit(index - 1, float(wait)) if index else None

    def _charge_fallback(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        if self._fallback == CLOSED:
            raise rate_store_unavailable()
        return self._local.fill(charges, now) if self._fallback == LOCAL else None

    async def close(self) -> None:
        await self._redis.aclose()
