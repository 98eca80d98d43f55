"""Rate-limit buckets that several gateways share in Redis.

One script per request does for all of its buckets what ``rate_limits.LocalBuckets`` does, on the
clock of Redis, so that neither the gateways nor their clocks have to agree.

If Redis does not answer in time, it is not queried for a moment; meanwhile the operator's choice
applies: ``local`` (each gateway counts for itself), ``open`` (no limits) or ``closed`` (all
requests are refused).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from infergate.access.rates import Counting, Full, StoreAway, Want
from infergate.core.vocabulary import RATES_AWAY, RATES_BACK

_log = logging.getLogger("infergate.access")

LOCAL: Final = "local"
OPEN: Final = "open"
CLOSED: Final = "closed"
ALONE: Final = 1.0
"""Seconds for which Redis is not queried after a failure."""
_CONNECTIONS: Final = 16
_KEYS: Final = "infergate:{rates}:"
"""The prefix of all Redis keys. The braces keep them on one node of a cluster, which a script
needs."""

SCRIPT: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local empty, full, worst = {}, 0, 0
for i, key in ipairs(KEYS) do
  local cost, room = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local level = math.max(tonumber(redis.call('GET', key) or '0') - now, 0)
  empty[i] = now + level + cost
  if level > 0.000001 and level + cost > room + 0.000001 then
    local wait = level
    if cost <= room then wait = level + cost - room end
    if wait > worst then full, worst = i, wait end
  end
end
if full > 0 then return {full, string.format('%.6f', worst)} end
for i, key in ipairs(KEYS) do
  local lasts = math.ceil((empty[i] - now) * 1000) + 1
  redis.call('SET', key, string.format('%.6f', empty[i]), 'PX', lasts)
end
return {0, '0'}
"""
"""KEYS are buckets; ARGV holds each charge's cost and burst in turn. Returns the number of the
bucket that has no room, from 1, and the seconds to wait; 0 if all buckets were charged."""


def redis_at(url: str, timeout: float) -> Any:
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


class InRedis:
    """A store in Redis."""

    def __init__(
        self,
        client: Any,
        timeout: float,
        otherwise: str,
        failed: Callable[[], None],
        local: Counting,
    ) -> None:
        """``client`` is a ``redis.asyncio.Redis``; ``timeout`` is in seconds; ``fallback`` is
        LOCAL, OPEN or CLOSED. ``on_failure`` is called when Redis does not answer; ``local`` holds
        the buckets of this gateway."""
        self._redis: Final[Any] = client
        self._script: Final[Any] = client.register_script(SCRIPT)
        self._timeout: Final = timeout
        self._otherwise: Final = otherwise
        self._failed: Final = failed
        self._local: Final = local
        self._alone_until = 0.0
        self._is_away = False

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room."""
        if now < self._alone_until:
            return self._without(wants, now)
        keys = [_KEYS + charge.bucket for charge in wants]
        arguments = [argument for charge in wants for argument in (charge.cost, charge.room)]
        try:
            async with asyncio.timeout(self._timeout):
                index, wait = await self._script(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self._failed()
            self._alone_until = now + ALONE
            if not self._is_away:
                self._is_away = True
                _log.error(
                    "redis cannot count rates (%s); until it can, the fallback is '%s'",
                    type(error).__name__, self._otherwise, extra=RATES_AWAY)  # fmt: skip
            return self._without(wants, now)
        if self._is_away:
            self._is_away = False
            _log.info("redis counts rates again", extra=RATES_BACK)
        return Full(index - 1, float(wait)) if index else None

    def _without(self, wants: Sequence[Want], now: float) -> Full | None:
        if self._otherwise == CLOSED:
            raise StoreAway
        return self._local.fill(wants, now) if self._otherwise == LOCAL else None

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
