"""The sections of routes.yaml on the response cache."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infergate.config.access import RedisUrl
from infergate.config.fields import Name, PositiveDuration, PositiveSize, Size
from infergate.config.section import Section
from infergate.core.limits import KIB, MIB


class RouteCacheConfig(Section):
    """The response cache of a route (docs/cache.md).

    Example: `cache: {ttl: 5m}`."""

    ttl: PositiveDuration = Field(
        description="How long a response may be used. Example: `5m`. Cached responses become "
        "obsolete earlier when a model is loaded or unloaded through infergate, when the backend "
        "responds with a different model version, and when the configuration of the route or its "
        "backend changes."
    )
    per_identity: bool = Field(
        default=False,
        description="Do not share responses between clients with different identities (`access`). "
        "By default, all clients that may use the route share its cached responses.",
    )
    min_uses: Literal[1, 2] = Field(
        default=1,
        description="With `2`, a response is cached only when its inference occurs for the second "
        "time. Inferences that occur only once then cost hardly any CPU and no memory. New "
        "inferences that are identical and concurrent may be sent twice.",
    )
    ignore_parameters: tuple[Name, ...] = Field(
        default=("priority", "timeout"),
        description="Names of request parameters that do not affect the response. Requests that "
        "differ only in these parameters share a cached response.",
    )


class CacheRedisConfig(Section):
    """A Redis or Valkey server in which several gateways share cached responses. While it does not
    respond, each gateway uses only its own memory.

    Example: `redis: {url: "${REDIS_URL}"}`."""

    url: RedisUrl
    timeout: PositiveDuration = Field(
        default=0.1,
        description="Maximum time that a request waits for Redis, including connecting. After a "
        "failure, Redis is not queried for one second.",
    )


class CacheConfig(Section):
    """Limits and storage of the response cache, which routes enable with `cache`."""

    max_bytes: Annotated[Size, Field(ge=4 * KIB)] = Field(
        default=256 * MIB,
        description="Maximum memory of all cached responses, which all workers share. The least "
        "recently used responses are dropped first. The minimum is 4 KiB, the smallest memory that "
        "holds a response; to cache nothing, remove `cache` from the routes. Example: `1GiB`.",
    )
    max_entry_bytes: PositiveSize = Field(
        default=16 * MIB, description="Larger responses are not cached."
    )
    redis: CacheRedisConfig | None = Field(
        default=None,
        description="Additional storage that several gateways share, and that outlives restarts. "
        "By default, responses are cached only in memory. Requires `pip install infergate[redis]`.",
    )
