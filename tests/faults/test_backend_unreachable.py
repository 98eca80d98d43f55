"""Tests backends that cannot be reached, because the port is closed, the host is silent, or the
name does not resolve."""

from __future__ import annotations

import time

import pytest

from faults.replicas import Names, gateway, replicas
from faults.scripted_backends import Harness
from infergate.core.errors import GatewayError, Kind
from waiting import until


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_refused_connection_is_reported(harness: Harness, kind: str) -> None:
    name = {"rest": "nobody-http", "grpc": "nobody-grpc"}[kind]
    for _ in range(3):
        harness.fails(f"nobody.{kind}", name, "connect")


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_silent_host_costs_no_more_than_two_connect_timeouts(harness: Harness, kind: str) -> None:
    """The backend's connect timeout of 100 ms replaces ``limits.connect_time``, which is 20 s."""
    name = {"rest": "hole-http", "grpc": "hole-grpc"}[kind]
    began = time.monotonic()
    harness.fails(f"hole.{kind}", name, "connect")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("transport", "engine"), [("http", "own"), ("grpc", "own"), ("http", "compat")]
)
async def test_a_name_is_used_as_soon_as_it_resolves(
    transport: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, a request fails with an error that does not name the host, and failed lookups are
    counted. (test_endpoints tests a name that disappears later.)"""
    names = Names(monkeypatch, **{"pods.test": []})
    async with replicas("127.0.0.1") as pods:
        url = f"{transport}://pods.test:{getattr(pods[0], transport)}"
        async with gateway(transport, engine, [url], dns_refresh="20ms") as load:
            with pytest.raises(GatewayError) as caught:
                await load.send_request()
            assert caught.value.kind in {Kind.CONNECT, Kind.NO_BACKEND}
            assert "pods.test" not in caught.value.public
            await until(lambda: load.stats()[0].lookups_failed > 1, "failed lookups are counted")
            assert await load.metric("infergate_endpoint_lookup_failures_total", 0) > 1
            names.addresses["pods.test"] = ["127.0.0.1"]
            await until(lambda: load.stats()[0].available == 1, "the endpoint is available")
            await load.send_request()
