"""Tests endpoints that stop and return, alternate between states, are slow, or are all unreachable,
over HTTP and gRPC, with both engines, on real sockets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest

from faults.replicas import Names, gateway, replicas
from faults.watch import SECONDS, descriptors
from infergate.backends.base import SupportsHealthWatch
from infergate.core.errors import GatewayError, Kind
from waiting import until

LOCAL = "127.0.0.1"
FAILURES_BEFORE_EJECTION = 5
"""Failed requests after which an endpoint is ejected, by default."""
TRANSPORTS_AND_ENGINES = [("http", "own"), ("http", "compat"), ("grpc", "own"), ("grpc", "compat")]
transports_and_engines = pytest.mark.parametrize(("transport", "engine"), TRANSPORTS_AND_ENGINES)


@transports_and_engines
async def test_one_endpoint_of_three_is_killed_and_restarted(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as servers:
        urls = [each.url(transport) for each in servers]
        async with gateway(transport, engine, urls, balance={"slow_start": "0s"}) as load:
            before = await load.metric("infergate_endpoint_addresses", 0)
            assert before == 1
            async with load.callers(6):
                await load.wait_for_responses(60)
                assert all(each.ok > 5 for each in load.stats())
                await servers[0].kill()
                await until(lambda: load.stats()[0].down == 1, "the endpoint is down")
                broken = sum(load.failed.values())
                assert broken <= 6 + FAILURES_BEFORE_EJECTION
                assert set(load.failed) <= {"BACKEND_GARBAGE", "CANCELLED", "NO_BACKEND"}
                await load.wait_for_responses(60)
                stats = load.stats()[0]
                assert (stats.down, stats.available) == (1, 0)
                await load.wait_for_responses(60)
                assert load.stats()[0].failed == stats.failed, "a down endpoint got a request"
                assert await load.metric("infergate_endpoint_addresses", 0, state="down") == 1
                await servers[0].start()
                await until(lambda: load.stats()[0].available == 1, "the endpoint is up again")
                await until(
                    lambda: load.stats()[0].ok > stats.ok + 10, "the endpoint is used again"
                )
                await load.wait_for_responses(60)
            assert sum(load.failed.values()) == broken
            assert await load.metric("infergate_endpoint_checks_total", 0) > 3
            await until(
                lambda: not any(each.active for each in load.stats()), "all requests have ended"
            )


@pytest.mark.parametrize(("transport", "engine"), [("http", "own"), ("grpc", "own")])
async def test_failures_eject_endpoints_without_health_checks(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL) as servers:
        urls = [each.url(transport) for each in servers]
        no_checks = {"checks": "never"}
        outliers = {"base_ejection_time": "200ms"}
        balance = {"slow_start": "0s"}
        async with gateway(
            transport, engine, urls, health=no_checks, outliers=outliers, balance=balance
        ) as load:
            await servers[1].kill()
            async with load.callers(3):
                await until(lambda: load.stats()[1].ejected == 1, "the endpoint is ejected")
                await until(lambda: load.stats()[1].ejections >= 2, "the endpoint is ejected again")
                await servers[1].start()
                await until(lambda: load.stats()[1].ok > 10, "the endpoint is used again")
            assert not load.failed, "a request failed although none was in progress at the kill"
            assert await load.metric("infergate_endpoint_ejections_total", 1) >= 2
            assert await load.metric("infergate_endpoint_checks_total", 1) == 0


@pytest.mark.parametrize(("transport", "engine"), [("http", "own"), ("grpc", "own")])
async def test_a_flapping_endpoint_breaks_only_requests_in_flight(
    transport: str, engine: str
) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as servers:
        urls = [each.url(transport) for each in servers]
        # A slow shutdown rejects enough requests to eject the endpoint, by default for 30 s and
        # then 60 s. A successful health check does not end the ejection early.
        outliers = {"base_ejection_time": "200ms"}
        async with gateway(transport, engine, urls, outliers=outliers) as load:
            async with load.callers(4):
                for _ in range(4):
                    await load.wait_for_responses(20)
                    await servers[1].kill()
                    await load.wait_for_responses(20)
                    await servers[1].start()
                await until(lambda: load.stats()[1].available == 1, "the endpoint is up at the end")
                await load.wait_for_responses(20)
            failed = sum(load.failed.values())
            assert failed <= 4 * (4 + FAILURES_BEFORE_EJECTION)
            counted = await load.metric("infergate_endpoint_requests_total", 1, outcome="failed")
            assert counted >= failed
            for position in (0, 2):
                assert await load.metric("infergate_endpoint_ejections_total", position) == 0
        await until(
            lambda: all(each.connections() == 0 for each in servers), "no connection stays open"
        )


@transports_and_engines
async def test_the_slow_endpoint_of_three_gets_fewer_requests(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as servers:
        servers[2].backend.seconds = 0.5
        urls = [each.url(transport) for each in servers]
        async with gateway(transport, engine, urls) as load:
            async with load.callers(8):
                await load.wait_for_responses(150)
                async with asyncio.timeout(SECONDS):
                    while await load.metric("infergate_endpoint_active_requests", 2) < 1:
                        await load.wait_for_responses(1)
            first, second, slow = (each.ok for each in load.stats())
            assert slow < 0.2 * (first + second)
            assert not load.failed


async def wait_for_readiness(ready: Callable[[], Awaitable[bool]], expected: bool) -> None:
    """Wait until ``ready`` returns ``expected``. Its result is cached briefly."""
    async with asyncio.timeout(SECONDS):
        while await ready() is not expected:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@transports_and_engines
async def test_all_endpoints_down_is_reported_and_cleared_immediately(
    transport: str, engine: str
) -> None:
    async with replicas(LOCAL, LOCAL) as servers:
        urls = [each.url(transport) for each in servers]
        async with gateway(transport, engine, urls) as load:
            ready = load.gateway.gateway.readiness.is_ready
            assert await ready()
            for each in servers:
                await each.kill()
            await until(lambda: all(each.down for each in load.stats()), "all endpoints are down")
            for position in (0, 1):
                down = await load.metric("infergate_endpoint_addresses", position, state="down")
                assert down == 1
            held = descriptors(os.getpid())
            for _ in range(10):
                began = time.monotonic()
                with pytest.raises(GatewayError) as caught:
                    await load.send_request()
                assert caught.value.kind is Kind.CONNECT
                assert caught.value.public == "backend 'b': the backend could not be reached"
                assert time.monotonic() - began < SECONDS / 2
            assert descriptors(os.getpid()) <= held + 2
            await wait_for_readiness(ready, False)
            await servers[1].start()
            await until(lambda: load.stats()[1].available == 1, "one endpoint is up")
            await load.send_request()
            await wait_for_readiness(ready, True)  # one endpoint is enough for a backend


async def test_a_single_endpoint_is_not_checked() -> None:
    async with replicas(LOCAL) as servers, gateway("http", "own", [servers[0].url("http")]) as load:
        remote = load.gateway.gateway.backends[0]
        assert isinstance(remote, SupportsHealthWatch)
        assert remote.is_ready is None, (
            "the only endpoint was checked before the first readiness request"
        )
        assert await load.metric("infergate_endpoint_checks_total", 0) == 0
        assert await load.gateway.gateway.readiness.is_ready()
        assert not [t for t in asyncio.all_tasks() if "watching" in repr(t.get_coro())]


# ---- DNS names

PODS = "pods.test"


@transports_and_engines
async def test_pods_are_added_and_removed(
    transport: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    names = Names(monkeypatch, **{PODS: list(hosts[:2])})
    async with replicas(*hosts, same_ports=True) as pods:
        port = getattr(pods[0], transport)
        url = f"{transport}://{PODS}:{port}"
        async with gateway(
            transport, engine, [url], dns_refresh="20ms", balance={"slow_start": "0s"}
        ) as load:
            first, second, third = (each.backend for each in pods)
            async with load.callers(4):
                await until(
                    lambda: min(first.inferences, second.inferences) > 10, "both pods are in use"
                )
                assert third.inferences == 0
                assert load.stats()[0].available == 2
                names.addresses[PODS] = list(hosts[1:])
                await until(lambda: third.inferences > 10, "the new endpoint receives requests")
                await until(
                    lambda: pods[0].connections() == 0, "no client is connected to the old endpoint"
                )
                inferences_before = first.inferences
                await load.wait_for_responses(50)
                assert first.inferences == inferences_before
                names.addresses[PODS] = []
                await until(
                    lambda: load.stats()[0].lookups_failed > 2, "the name no longer resolves"
                )
                await load.wait_for_responses(50)
                assert load.stats()[0].available == 2, "known addresses were removed"
            assert await load.metric("infergate_endpoint_lookup_failures_total", 0) > 2
            assert not load.failed
            assert load.stats()[0].endpoint == url
            assert load.stats()[0].ok == load.ok, "counters of removed pods are missing"


@transports_and_engines
async def test_a_removed_pod_completes_its_requests(
    transport: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ("127.0.0.1", "127.0.0.2")
    names = Names(monkeypatch, **{PODS: [hosts[0]]})
    async with replicas(*hosts, same_ports=True) as pods:
        url = f"{transport}://{PODS}:{getattr(pods[0], transport)}"
        async with gateway(transport, engine, [url], dns_refresh="20ms") as load:
            await load.send_request()
            await until(lambda: load.stats()[0].available == 1, "the name resolves")
            pods[0].backend.seconds = 0.5
            slow = asyncio.ensure_future(load.send_request())
            await until(lambda: load.stats()[0].active == 1, "the request is in progress")
            names.addresses[PODS] = [hosts[1]]
            before = names.requests  # a lookup in progress may miss the change
            await until(lambda: names.requests >= before + 2, "the name was looked up")
            await load.send_request()
            assert pods[1].connections() >= 1
            assert not slow.done()
            await slow
            await until(
                lambda: pods[0].connections() == 0, "the connections to the removed pod are closed"
            )
            assert await load.metric("infergate_endpoint_requests_total", 0, outcome="ok") == 3
