"""Converts the endpoint options of a backend's configuration to the settings of ``backends``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from infergate.backends.endpoints import Balance, Site
from infergate.backends.watching import Watching, is_name
from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig
from infergate.config.values import shown_urls
from infergate.core.call import Call
from infergate.routing.cluster import ClusterRule
from infergate.routing.outliers import OutlierRule

_HASH: Final = "consistent-hash"
_LEAST: Final = "least-request"


def sites(config: BackendConfig) -> Sequence[Site]:
    """Return the configured endpoints. A backend with shared memory must be a single server, so its
    host name counts as a single endpoint."""
    looks_up = bool(config.dns_refresh) and config.shared_memory == "copy"
    urls = config.endpoints
    rows = zip(urls, shown_urls(urls), compiled.endpoints(config), strict=True)
    return [
        Site(endpoint, shown, url.weight, looks_up and is_name(endpoint.host))
        for url, shown, endpoint in rows
    ]


def balance(config: BackendConfig) -> Balance:
    """Return the load-balancing settings."""
    balance_config, outliers = config.balance, config.outliers
    hashes = balance_config.policy == _HASH
    rule = OutlierRule(
        outliers.consecutive_errors,
        outliers.base_ejection_time,
        outliers.max_ejection_time,
        outliers.max_ejection_percent / 100,
    )
    return Balance(
        _LEAST if hashes else balance_config.policy,
        hashes,
        ClusterRule(rule, balance_config.slow_start, balance_config.panic_threshold / 100),
        config.health.rise,
        config.health.fall,
    )


def watching(config: BackendConfig) -> Watching:
    """Return the settings for health checks and DNS lookups."""
    health = config.health
    checks = {"always": True, "never": False}.get(health.checks)
    if checks is None and config.connections:  # a check would wait behind requests
        checks = False
    return Watching(config.dns_refresh, checks, health.interval, health.timeout)


def key(config: BackendConfig) -> Callable[[Call], str] | None:
    """Return a function that computes a request's hash key, if the backend uses consistent
    hashing."""
    if config.balance.policy != _HASH:
        return None
    header = config.balance.hash_header
    return lambda call: call.headers.get(header, "")
