"""Tests of the endpoints and their settings made from a backend's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from infergate.assembly import endpoint_settings
from infergate.backends.endpoint_monitor import MonitoringSettings
from infergate.backends.endpoints import BalanceSettings
from infergate.config.schema import BackendConfig
from infergate.core.request_context import RequestContext
from infergate.routing.cluster import ClusterRule
from infergate.routing.outliers import OutlierRule


def backend(**keys: Any) -> BackendConfig:
    defaults = {"protocol": "v2-rest", "endpoints": ("http://pods", "http://10.0.0.1:8000")}
    return BackendConfig.model_validate({**defaults, **keys})


def test_default_settings() -> None:
    config = backend()
    rule = ClusterRule(OutlierRule(5, 30.0, 300.0, 0.1), 10.0, 0.0)
    assert endpoint_settings.balance_settings(config) == BalanceSettings(
        "least-request", False, rule, 2, 3
    )
    monitoring = MonitoringSettings(5.0, None, check_interval=5.0, check_timeout=2.0)
    assert endpoint_settings.monitoring_settings(config) == monitoring
    assert endpoint_settings.hash_key(config) is None


def test_configured_balance_settings() -> None:
    config = backend(
        balance={"policy": "round-robin", "panic_threshold": 50, "slow_start": "3s"},
        outliers={
            "consecutive_errors": 7,
            "base_ejection_time": "1s",
            "max_ejection_time": "9s",
            "max_ejection_percent": 40,
        },
        health={"rise": 4, "fall": 6},
    )
    rule = ClusterRule(OutlierRule(7, 1.0, 9.0, 0.4), 3.0, 0.5)
    assert endpoint_settings.balance_settings(config) == BalanceSettings(
        "round-robin", False, rule, 4, 6
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [True, False]),
        ({"dns_refresh": 0}, [False, False]),
        ({"endpoints": ("http://a:1",), "shared_memory": "forward"}, [False]),
        ({"endpoints": ("http://localhost:1", "http+unix:/run/a.sock")}, [False, False]),
    ],
)
def test_remote_host_names_are_resolved_unless_disabled(
    keys: dict[str, Any], expected: list[bool]
) -> None:
    endpoints = endpoint_settings.configured_endpoints(backend(**keys))
    assert [endpoint.uses_dns for endpoint in endpoints] == expected


def test_weights_are_not_part_of_the_label() -> None:
    (endpoint,) = endpoint_settings.configured_endpoints(
        backend(endpoints=({"url": "http://a:1", "weight": 3},))
    )
    assert (endpoint.label, endpoint.weight) == ("http://a:1", 3)


@pytest.mark.parametrize(
    ("health", "connections", "checks"),
    [
        ("auto", 0, None),
        ("auto", 1, False),
        ("always", 0, True),
        ("always", 1, True),
        ("never", 0, False),
    ],
)
def test_health_checks_depend_on_the_mode_and_the_connections(
    health: str, connections: int, checks: bool | None
) -> None:
    config = backend(health={"checks": health}, connections=connections)
    assert endpoint_settings.monitoring_settings(config).health_checks is checks


def test_the_hash_key_is_the_value_of_the_configured_header() -> None:
    config = backend(balance={"policy": "consistent-hash", "hash_header": "X-User"})
    key = endpoint_settings.hash_key(config)
    assert key is not None
    assert key(RequestContext("test", headers={"x-user": "me"})) == "me"
    assert key(RequestContext("test")) == ""
    assert endpoint_settings.balance_settings(config).uses_hashing
    assert endpoint_settings.balance_settings(config).policy == "least-request"
