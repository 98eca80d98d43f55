"""Converts the endpoint options of a backend's configuration to the settings of ``backends``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from infergate.backends.endpoint_monitor import MonitoringSettings, is_dns_name
from infergate.backends.endpoints import BalanceSettings, ConfiguredEndpoint
from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig
from infergate.config.values import display_names
from infergate.core.request_context import RequestContext
from infergate.routing.cluster import ClusterRule
from infergate.routing.outliers import OutlierRule

_CONSISTENT_HASH: Final = "consistent-hash"
_LEAST_REQUEST: Final = "least-request"


def configured_endpoints(config: BackendConfig) -> Sequence[ConfiguredEndpoint]:
    """Return the configured endpoints. A host name stands for one endpoint per address, or
    for a single endpoint if ``dns_refresh`` is 0 or ``shared_memory`` is ``forward``."""
    resolves_name = bool(config.dns_refresh) and config.shared_memory == "copy"
    urls = config.endpoints
    rows = zip(urls, display_names(urls), compiled.endpoints(config), strict=True)
    return [
        ConfiguredEndpoint(endpoint, name, url.weight, resolves_name and is_dns_name(endpoint.host))
        for url, name, endpoint in rows
    ]


def balance_settings(config: BackendConfig) -> BalanceSettings:
    """Return the load-balancing settings."""
    balance_config, outliers = config.balance, config.outliers
    is_consistent_hash = balance_config.policy == _CONSISTENT_HASH
    rule = OutlierRule(
        outliers.consecutive_errors,
        outliers.base_ejection_time,
        outliers.max_ejection_time,
        outliers.max_ejection_percent / 100,
    )
    return BalanceSettings(
        _LEAST_REQUEST if is_consistent_hash else balance_config.policy,
        is_consistent_hash,
        ClusterRule(rule, balance_config.slow_start, balance_config.panic_threshold / 100),
        config.health.rise,
        config.health.fall,
    )


def monitoring_settings(config: BackendConfig) -> MonitoringSettings:
    """Return the settings for health checks and DNS lookups."""
    health = config.health
    checks = {"always": True, "never": False}.get(health.checks)
    if checks is None and config.connections:  # a health check would wait behind requests
        checks = False
    return MonitoringSettings(config.dns_refresh, checks, health.interval, health.timeout)


def hash_key(config: BackendConfig) -> Callable[[RequestContext], str] | None:
    """Return a function that computes a request's hash key, or None without consistent hashing."""
    if config.balance.policy != _CONSISTENT_HASH:
        return None
    header = config.balance.hash_header
    return lambda context: context.headers.get(header, "")
