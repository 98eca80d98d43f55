"""Buckets that several gateways share, in Redis.

*Strategy.* One script a request does for all its buckets what ``rates.Buckets`` does, by Redis' own
clock, so that neither gateways nor their clocks have to agree.
*Rule.* A Redis that does not answer in time is left alone for a moment; meanwhile the operator's
choice holds: ``local`` (each gateway counts for itself), ``open`` (nobody counts) or ``closed``
(nobody comes in).
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
"""Seconds that a Redis is left alone."""
_CONNECTIONS: Final = 16
_KEYS: Final = "infergate:{rates}:"
"""How its keys begin. The braces keep them on one server of a cluster, as a script wants them."""

SCRIPT: Final = """
local told = redis.call('TIME')
local now = tonumber(told[1]) + tonumber(told[2]) / 1000000
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
"""Keys are buckets, arguments their wants' cost and room in turn. Gives the number of the one that
is full, from 1, and the seconds to wait; 0 where all were filled."""


def redis_at(url: str, timeout: float) -> Any:
    """A client of the Redis at ``url``, which is not asked twice; ``timeout`` in seconds."""
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
    """A Store."""

    def __init__(
        self,
        client: Any,
        timeout: float,
        otherwise: str,
        failed: Callable[[], None],
        local: Counting,
    ) -> None:
        """``client`` is a ``redis.asyncio.Redis``; ``timeout`` is in seconds; ``otherwise`` is one
        of those above; ``failed`` is called where Redis does not answer, ``local`` is where this
        gateway counts by itself."""
        self._redis: Final[Any] = client
        self._script: Final[Any] = client.register_script(SCRIPT)
        self._timeout: Final = timeout
        self._otherwise: Final = otherwise
        self._failed: Final = failed
        self._local: Final = local
        self._alone_until = 0.0
        self._is_away = False

    async def take(self, wants: Sequence[Want], now: float) -> Full | None:
        """See Store."""
        if now < self._alone_until:
            return self._without(wants, now)
        keys = [_KEYS + each.bucket for each in wants]
        arguments = [number for each in wants for number in (each.cost, each.room)]
        try:
            async with asyncio.timeout(self._timeout):
                index, wait = await self._script(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self._failed()
            self._alone_until = now + ALONE
            if not self._is_away:
                self._is_away = True
                _log.error(
                    "redis does not count rates (%s); until it does: %s",
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
        """Let go of connections."""
        await self._redis.aclose()
