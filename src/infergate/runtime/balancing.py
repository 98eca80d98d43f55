"""What a backend's configuration says of its endpoints, for the backend."""

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
    """Where the backend is. Regions of shared memory are one server's, so its name is one too."""
    looks_up = bool(config.dns_refresh) and config.shared_memory == "copy"
    urls = config.endpoints
    rows = zip(urls, shown_urls(urls), compiled.endpoints(config), strict=True)
    return [
        Site(endpoint, shown, url.weight, looks_up and is_name(endpoint.host))
        for url, shown, endpoint in rows
    ]


def balance(config: BackendConfig) -> Balance:
    """How requests are spread over them."""
    spread, outliers = config.balance, config.outliers
    hashes = spread.policy == _HASH
    rule = OutlierRule(
        outliers.consecutive_errors,
        outliers.base_ejection_time,
        outliers.max_ejection_time,
        outliers.max_ejection_percent / 100,
    )
    return Balance(
        _LEAST if hashes else spread.policy,
        hashes,
        ClusterRule(rule, spread.slow_start, spread.panic_threshold / 100),
        config.health.rise,
        config.health.fall,
    )


def watching(config: BackendConfig) -> Watching:
    """How they are looked after."""
    health = config.health
    checks = {"always": True, "never": False}.get(health.checks)
    if checks is None and config.connections:  # a check would wait for its turn behind requests
        checks = False
    return Watching(config.dns_refresh, checks, health.interval, health.timeout)


def key(config: BackendConfig) -> Callable[[Call], str] | None:
    """What requests have in common that are to go to one of them."""
    if config.balance.policy != _HASH:
        return None
    header = config.balance.hash_header
    return lambda call: call.headers.get(header, "")
