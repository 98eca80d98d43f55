"""Builds the response cache of a configuration, and the layers of routes that use it. The package
for Redis is imported only if Redis is configured."""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from infergate import __version__
from infergate.backends.header_filter import HeaderFilter
from infergate.caching.response_cache import ResponseCache
from infergate.config.cache import CacheConfig
from infergate.config.routes import RouteConfig, named_backends
from infergate.config.schema import Config
from infergate.core.stats import CacheStats
from infergate.gateway.cached_route import CachedRoute, CachePolicy
from infergate.gateway.route_layers import RouteLayer
from infergate.routing.table import Route
from infergate.runtime.running import GatewayParts
from infergate.runtime.worker_group import WorkerGroup

if TYPE_CHECKING:
    from infergate.caching.redis_store import RedisStore

_EXCHANGE_HEADERS: Final = frozenset({"traceparent", "tracestate", "baggage", "x-request-id"})
"""Headers that identify a request. They differ in each request, but do not change the response."""


LATER_SECONDS: Final = tuple(2.0**number for number in range(1, 10))
"""Seconds between repeated invalidations while a load may be in progress: 17 minutes in total."""


class ConfiguredCache:
    """The response cache. Successive configurations with the same section ``cache`` share it."""

    def __init__(self, config: CacheConfig, group: WorkerGroup) -> None:
        self._store: Final = group.response_store()
        self._max_bytes: Final = config.max_bytes
        self._redis: Final = None if config.redis is None else _make_redis_store(config, group)
        self.responses: Final = ResponseCache(self._store, config.max_entry_bytes, self._redis)
        self._later: Final[dict[str, asyncio.Task[None]]] = {}
        """The tasks that invalidate backends again, by the backend's name."""

    def activate(self) -> None:
        """Apply the configured size."""
        self._store.set_max_bytes(self._max_bytes)

    async def models_changed(self, backend: str, is_finished: bool) -> None:  # noqa: FBT001 - a callback
        """Invalidate all responses of ``backend``. ``is_finished`` is false if the operation on the
        backend's models failed or was cancelled. The invalidation is then repeated for a while,
        because a server may still be loading a model."""
        if (previous := self._later.pop(backend, None)) is not None:
            previous.cancel()
        if not is_finished:
            self._later[backend] = asyncio.create_task(self._invalidate_later(backend))
        await self.responses.invalidate(backend)

    async def _invalidate_later(self, backend: str) -> None:
        for seconds in LATER_SECONDS:
            await asyncio.sleep(seconds)
            await self.responses.invalidate(backend)

    def stats(self) -> CacheStats:
        """Return the usage of the memory store."""
        return self._store.usage()

    async def close(self, *, is_last: bool) -> None:
        """End the repeated invalidations, and close the connections to Redis. If this is the last
        cache in use, free the memory."""
        for task in self._later.values():
            task.cancel()
        await asyncio.gather(*self._later.values(), return_exceptions=True)
        if is_last:
            self._store.set_max_bytes(0)
        if self._redis is not None:
            await self._redis.close()


def make_cache(
    config: Config, group: WorkerGroup, previous: GatewayParts | None
) -> ConfiguredCache | None:
    """Return the cache of ``previous`` if its settings are unchanged, or a new cache. Return None
    if no route caches responses."""
    if all(route.cache is None for route in config.routes):
        return None
    if previous is not None and previous.cache and previous.config.cache == config.cache:
        return previous.cache
    return ConfiguredCache(config.cache, group)


def make_cache_layer(
    config: Config, cache: ConfiguredCache | None, group: WorkerGroup, route: RouteConfig
) -> RouteLayer | None:
    """Return the layer that caches the responses of ``route``, or None without a cache."""
    if cache is None or route.cache is None:
        return None
    label = Route(route.model, route.backend, route.version).label
    policy = CachePolicy(
        _scope(config, route),
        route.backend,
        route.cache.ttl,
        config.backends[route.backend].timeout if route.timeout is None else None,
        frozenset(route.cache.ignore_parameters),
        route.cache.per_identity,
        route.cache.min_uses,
        _forwarded_headers(config, route),
    )
    counters = group.metrics.backends.route_counters(label)
    return partial(CachedRoute, cache=cache.responses, policy=policy, counters=counters)


def _scope(config: Config, route: RouteConfig) -> bytes:
    """Return a hash of everything in the configuration that can change a response, and of the
    gateway's version. The hash is equal in all gateways with the same configuration and version."""
    names = [name for _, name in named_backends(route)]
    backends = [config.backends[name] for name in names]
    parts = (__version__, route, names, backends, config.models, config.tensorflow_serving)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()


def _forwarded_headers(
    config: Config, route: RouteConfig
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """Return a function that selects the headers that can change a response."""
    backends = (config.backends[name] for _, name in named_backends(route))
    globs = {glob for backend in backends for glob in backend.forward_headers}
    names = HeaderFilter(sorted(globs - _EXCHANGE_HEADERS))

    def select(headers: Mapping[str, str]) -> Mapping[str, str]:
        selected = names.select(headers)
        for name in _EXCHANGE_HEADERS.intersection(selected):  # a glob such as x-* selects them
            del selected[name]
        return selected

    return select


def _make_redis_store(config: CacheConfig, group: WorkerGroup) -> RedisStore:
    from infergate.access.redis_rates import redis_client
    from infergate.caching.redis_store import RedisStore

    redis = config.redis
    assert redis is not None
    client = redis_client(redis.url, redis.timeout)
    failures = group.metrics.cache.count_redis_failure
    return RedisStore(client, redis.timeout, config.max_entry_bytes, failures)
