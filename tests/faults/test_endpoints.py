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
"""Requests that a stopping endpoint may still decline before it is ejected."""
TRANSPORTS_AND_ENGINES = [("http", "own"), ("http", "compat"), ("grpc", "own"), ("grpc", "compat")]
transports_and_engines = pytest.mark.parametrize(("transport", "engine"), TRANSPORTS_AND_ENGINES)


@transports_and_engines
async def test_one_of_three_is_killed_and_restarted(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as three:
        urls = [each.url(transport) for each in three]
        async with gateway(transport, engine, urls, balance={"slow_start": "0s"}) as load:
            before = await load.metric("infergate_endpoint_addresses", 0)
            assert before == 1
            async with load.callers(6):
                await load.wait_for_responses(60)
                assert all(each.ok > 5 for each in load.stats())
                await three[0].kill()
                await until(lambda: load.stats()[0].down == 1, "the endpoint is down")
                broken = sum(load.failed.values())
                assert broken <= 6 + FAILURES_BEFORE_EJECTION, (
                    "requests in progress, one for each client"
                )
                assert set(load.failed) <= {"BACKEND_GARBAGE", "CANCELLED", "NO_BACKEND"}
                await load.wait_for_responses(60)
                requests = load.stats()[0]
                assert (requests.down, requests.available) == (1, 0)
                await load.wait_for_responses(60)
                assert load.stats()[0].failed == requests.failed, (
                    "no request is sent to the endpoint"
                )
                assert await load.metric("infergate_endpoint_addresses", 0, state="down") == 1
                await three[0].start()
                await until(lambda: load.stats()[0].available == 1, "the endpoint is up again")
                await until(
                    lambda: load.stats()[0].ok > requests.ok + 10, "it receives requests again"
                )
                await load.wait_for_responses(60)
            assert sum(load.failed.values()) == broken
            assert await load.metric("infergate_endpoint_checks_total", 0) > 3
            await until(
                lambda: not any(each.active for each in load.stats()), "all requests have ended"
            )


@pytest.mark.parametrize(("transport", "engine"), [("http", "own"), ("grpc", "own")])
async def test_failures_eject_endpoints_without_health_checks(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL) as two:
        urls = [each.url(transport) for each in two]
        never = {"checks": "never"}
        out = {"base_ejection_time": "200ms"}
        balance = {"slow_start": "0s"}
        async with gateway(
            transport, engine, urls, health=never, outliers=out, balance=balance
        ) as load:
            await two[1].kill()
            async with load.callers(3):
                await until(lambda: load.stats()[1].ejected == 1, "the endpoint is ejected")
                await until(lambda: load.stats()[1].ejections >= 2, "it is ejected a second time")
                await two[1].start()
                await until(lambda: load.stats()[1].ok > 10, "it receives requests again")
            assert not load.failed, "nothing was sent, so another endpoint was tried"
            assert await load.metric("infergate_endpoint_ejections_total", 1) >= 2
            assert await load.metric("infergate_endpoint_checks_total", 1) == 0


@pytest.mark.parametrize(("transport", "engine"), [("http", "own"), ("grpc", "own")])
async def test_a_flapping_endpoint_breaks_only_requests_in_flight(
    transport: str, engine: str
) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as three:
        urls = [each.url(transport) for each in three]
        # A server that stops slowly rejects enough requests to be ejected: by default for 30 s and
        # then 60 s, which a successful health check does not shorten.
        out = {"base_ejection_time": "200ms"}
        async with gateway(transport, engine, urls, outliers=out) as load:
            async with load.callers(4):
                for _ in range(4):
                    await load.wait_for_responses(20)
                    await three[1].kill()
                    await load.wait_for_responses(20)
                    await three[1].start()
                await until(lambda: load.stats()[1].available == 1, "the endpoint is up at the end")
                await load.wait_for_responses(20)
            failed = sum(load.failed.values())
            assert failed <= 4 * (4 + FAILURES_BEFORE_EJECTION)
            response = await load.metric("infergate_endpoint_requests_total", 1, outcome="failed")
            assert response >= failed
            for position in (0, 2):
                assert await load.metric("infergate_endpoint_ejections_total", position) == 0
        await until(
            lambda: all(each.connections() == 0 for each in three), "no connection stays open"
        )


@transports_and_engines
async def test_the_slow_endpoint_of_three_gets_fewer_requests(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as three:
        three[2].backend.seconds = 0.5
        urls = [each.url(transport) for each in three]
        async with gateway(transport, engine, urls) as load:
            async with load.callers(8):
                await load.wait_for_responses(150)
                async with asyncio.timeout(SECONDS):
                    while await load.metric("infergate_endpoint_active_requests", 2) < 1:
                        await load.wait_for_responses(1)
            fast, other, slow = (each.ok for each in load.stats())
            assert slow < 0.2 * (fast + other)
            assert not load.failed


async def becomes(ready: Callable[[], Awaitable[bool]], expected: bool) -> None:
    """Wait until the cached readiness has expired."""
    async with asyncio.timeout(SECONDS):
        while await ready() is not expected:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@transports_and_engines
async def test_all_endpoints_down_is_reported_and_cleared_immediately(
    transport: str, engine: str
) -> None:
    async with replicas(LOCAL, LOCAL) as two:
        urls = [each.url(transport) for each in two]
        async with gateway(transport, engine, urls) as load:
            ready = load.gateway.gateway.readiness.is_ready
            assert await ready()
            for each in two:
                await each.kill()
            await until(lambda: all(each.down for each in load.stats()), "all endpoints are down")
            for position in (0, 1):
                response = await load.metric("infergate_endpoint_addresses", position, state="down")
                assert response == 1
            held = descriptors(os.getpid())
            for _ in range(10):
                began = time.monotonic()
                with pytest.raises(GatewayError) as caught:
                    await load.send_request()
                assert caught.value.kind is Kind.CONNECT
                assert caught.value.public == "backend 'b': the backend could not be reached"
                assert time.monotonic() - began < SECONDS / 2
            assert descriptors(os.getpid()) <= held + 2
            await becomes(ready, False)
            await two[1].start()
            await until(lambda: load.stats()[1].available == 1, "one endpoint is up")
            await load.send_request()
            await becomes(ready, True)  # one endpoint is enough for a backend


async def test_a_single_endpoint_is_not_checked() -> None:
    async with replicas(LOCAL) as one, gateway("http", "own", [one[0].url("http")]) as load:
        remote = load.gateway.gateway.backends[0]
        assert isinstance(remote, SupportsHealthWatch)
        assert remote.is_ready is None, "the only endpoint is not checked until a client asks"
        assert await load.metric("infergate_endpoint_checks_total", 0) == 0
        assert await load.gateway.gateway.readiness.is_ready()
        assert not [t for t in asyncio.all_tasks() if "watching" in repr(t.get_coro())]


# ---- names

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
                    lambda: min(first.inferences, second.inferences) > 10, "both receive requests"
                )
                assert third.inferences == 0
                assert load.stats()[0].available == 2
                names.addresses[PODS] = list(hosts[1:])
                await until(lambda: third.inferences > 10, "the new endpoint receives requests")
                await until(
                    lambda: pods[0].connections() == 0, "no client is connected to the old endpoint"
                )
                gone = first.inferences
                await load.wait_for_responses(50)
                assert first.inferences == gone
                names.addresses[PODS] = []
                await until(
                    lambda: load.stats()[0].lookups_failed > 2, "the name no longer resolves"
                )
                await load.wait_for_responses(50)
                assert load.stats()[0].available == 2, "the known addresses are kept"
            assert await load.metric("infergate_endpoint_lookup_failures_total", 0) > 2
            assert not load.failed
            assert load.stats()[0].endpoint == url
            assert load.stats()[0].ok == load.ok, "the counters of removed pods are kept"


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
            await until(lambda: pods[0].connections() == 0, "its connections are then closed")
            assert await load.metric("infergate_endpoint_requests_total", 0, outcome="ok") == 3
