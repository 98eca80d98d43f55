"""Background tasks that check, resolve and watch endpoints."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from infergate.backends.endpoint_monitor import (
    EndpointMonitor,
    MonitoringSettings,
    is_dns_name,
    resolve_host,
)
from infergate.backends.endpoints import ConfiguredEndpoint, EndpointHandle, Endpoints
from infergate.transport.base import Endpoint
from waiting import until

PODS = ConfiguredEndpoint(Endpoint("pods", 1), "http://pods:1", uses_dns=True)
A, B = ConfiguredEndpoint(Endpoint("10.0.0.1", 1)), ConfiguredEndpoint(Endpoint("10.0.0.2", 1))
QUICK = MonitoringSettings(resolve_interval=0.01, check_interval=0.02, check_timeout=0.5)


class Hosts:
    def __init__(self) -> None:
        self.addresses: Collection[str] = ["10.0.0.7"]
        self.succeeds = True
        self.bug = False
        self.lookups = 0
        self.checked: list[str] = []
        self.dropped: list[str] = []

    async def resolve(self, name: str, port: int) -> Collection[str]:
        self.lookups += 1
        return self.addresses

    async def check(self, endpoint: EndpointHandle, timeout: float) -> bool:
        self.checked.append(str(endpoint.endpoint))
        if self.bug:
            raise ZeroDivisionError
        return self.succeeds

    async def disconnect(self, endpoint: Endpoint) -> None:
        self.dropped.append(str(endpoint))


def make_monitor(
    hosts: Hosts, configured: list[ConfiguredEndpoint], settings: MonitoringSettings = QUICK
) -> tuple[EndpointMonitor, Endpoints]:
    endpoints = Endpoints("b", configured)
    return EndpointMonitor(endpoints, settings, hosts.check, hosts, hosts.resolve), endpoints


@asynccontextmanager
async def running(monitor: EndpointMonitor) -> AsyncIterator[None]:
    monitor.start()
    monitor.start()
    try:
        yield
    finally:
        tasks = monitor._tasks
        await monitor.stop()
        assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize(
    ("configured", "checks", "count"),
    [
        ([A], None, 0),
        ([A], False, 0),
        ([A], True, 1),
        ([A, B], None, 1),
        ([A, B], False, 0),
        ([PODS], None, 2),
        ([PODS], False, 1),
        ([PODS, PODS], True, 3),
    ],
)
async def test_tasks_are_created_only_when_needed(
    configured: list[ConfiguredEndpoint], checks: bool | None, count: int
) -> None:
    monitor, _ = make_monitor(Hosts(), configured, MonitoringSettings(health_checks=checks))
    monitor.start()
    assert len(monitor._tasks) == count
    await monitor.stop()


async def test_names_are_resolved_periodically_and_removed_addresses_dropped() -> None:
    hosts = Hosts()
    monitor, endpoints = make_monitor(hosts, [PODS, A])
    async with running(monitor):
        await until(lambda: hosts.dropped == ["pods:1"])
        hosts.addresses = ["10.0.0.8"]
        await until(lambda: hosts.dropped == ["pods:1", "10.0.0.7:1"])
        assert [str(each.endpoint) for each in endpoints.all_handles()] == [
            "10.0.0.8:1",
            "10.0.0.1:1",
        ]
        lookups_before = hosts.lookups
        await until(lambda: hosts.lookups > lookups_before + 3)
    assert len(hosts.dropped) == 2


class Watch:
    """A watch that waits until ``listed`` is set. Its first run then fails because of a bug."""

    def __init__(self) -> None:
        self.has_listed = False
        self.listed = asyncio.Event()
        self.runs = 0
        self.known: Sequence[tuple[str, int]] | None = None

    def known_addresses(self) -> Sequence[tuple[str, int]] | None:
        return self.known

    async def run(
        self,
        on_change: Callable[[Sequence[tuple[str, int]]], None],
        on_state: Callable[[bool], None],
    ) -> NoReturn:
        self.runs += 1
        on_state(False)
        await self.listed.wait()
        if self.runs == 1:
            raise ZeroDivisionError
        self.has_listed = True
        on_state(True)
        on_change([("10.0.0.8", 9)])
        await asyncio.Event().wait()
        raise AssertionError


async def test_dns_is_used_until_the_watch_has_listed(caplog: pytest.LogCaptureFixture) -> None:
    hosts, watch = Hosts(), Watch()
    endpoints = Endpoints("b", [PODS])
    monitor = EndpointMonitor(endpoints, QUICK, hosts.check, hosts, hosts.resolve, watch=watch)
    async with running(monitor):
        await until(
            lambda: [str(each.endpoint) for each in endpoints.all_handles()] == ["10.0.0.7:1"]
        )
        assert endpoints.stats()[0].watches_failing == 1
        watch.listed.set()
        await until(lambda: hosts.dropped == ["pods:1", "10.0.0.7:1"])
        assert [str(each.endpoint) for each in endpoints.all_handles()] == ["10.0.0.8:9"]
        assert endpoints.stats()[0].watches_current == 1
        lookups = hosts.lookups
        await asyncio.sleep(5 * QUICK.resolve_interval)
        assert hosts.lookups == lookups
    assert "bug while watching pods" in caplog.text


async def test_addresses_that_a_watch_knows_are_used_at_once() -> None:
    hosts, watch = Hosts(), Watch()
    watch.known = [("10.0.0.9", 9)]
    endpoints = Endpoints("b", [PODS])
    monitor = EndpointMonitor(endpoints, QUICK, hosts.check, hosts, hosts.resolve, watch=watch)
    monitor.start()
    assert [str(each.endpoint) for each in endpoints.all_handles()] == ["10.0.0.9:9"]
    await monitor.stop()


async def test_health_checks_change_readiness() -> None:
    hosts = Hosts()
    monitor, endpoints = make_monitor(hosts, [A, B])
    async with running(monitor):
        await until(lambda: endpoints.is_ready is True)
        hosts.succeeds = False
        await until(lambda: endpoints.is_ready is False)
        hosts.succeeds = True
        await until(lambda: endpoints.is_ready is True)
    assert set(hosts.checked) == {"10.0.0.1:1", "10.0.0.2:1"}


async def test_a_bug_in_one_check_is_logged_and_checks_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = Hosts()
    hosts.bug = True
    monitor, endpoints = make_monitor(hosts, [A, B])
    with caplog.at_level(logging.ERROR):
        async with running(monitor):
            await until(lambda: len(hosts.checked) > 4)
            assert endpoints.is_ready is None
            hosts.bug = False
            await until(lambda: endpoints.is_ready is True)
    assert "bug in the health check of 10.0.0." in caplog.text


async def test_a_single_address_is_not_checked() -> None:
    hosts = Hosts()
    monitor, endpoints = make_monitor(hosts, [PODS])
    async with running(monitor):
        lookups_before = hosts.lookups
        await until(lambda: hosts.lookups > lookups_before + 10)
        assert not hosts.checked
        assert not monitor.is_checking
        hosts.addresses = ["10.0.0.7", "10.0.0.8"]
        await until(lambda: len(set(hosts.checked)) == 2)
        assert endpoints.has_several


async def test_removed_endpoints_are_not_checked() -> None:
    """A late check would open connections that are never closed."""
    hosts = Hosts()
    monitor, endpoints = make_monitor(hosts, [PODS, A])
    endpoints.set_addresses(0, ["10.0.0.7"])
    leaving, staying = endpoints.all_handles()
    checks = [asyncio.create_task(monitor._check_one(each, 0.001)) for each in (leaving, staying)]
    await asyncio.sleep(0)
    endpoints.set_addresses(0, ["10.0.0.8"])
    assert leaving.endpoint in endpoints.pop_drained()
    await asyncio.gather(*checks)
    assert hosts.checked == [str(staying.endpoint)]


async def test_a_bug_in_one_lookup_is_logged_and_lookups_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = Hosts()
    monitor, endpoints = make_monitor(hosts, [PODS])
    resolve, hosts.addresses = hosts.resolve, ["10.0.0.9"]

    async def fail_with_a_bug(name: str, port: int) -> Collection[str]:
        await resolve(name, port)
        if hosts.lookups == 1:
            raise ZeroDivisionError
        return hosts.addresses

    monitor._resolve = fail_with_a_bug  # type: ignore[misc]
    async with running(monitor):
        await until(lambda: str(endpoints.all_handles()[0].endpoint) == "10.0.0.9:1")
    assert "bug while resolving pods" in caplog.text


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("triton", True),
        ("a.b.example.", True),
        ("localhost", False),
        ("x.localhost", False),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("", False),
    ],
)
def test_names_and_addresses_are_distinguished(host: str, expected: bool) -> None:
    assert is_dns_name(host) is expected


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
        (["fe80::1", "10.0.0.1"], ["10.0.0.1"]),
        (["fe80::1", "fe80::2"], ["fe80::1", "fe80::2"]),
        ([], []),
    ],
)
async def test_the_systems_resolver_prefers_ipv4(
    resolved: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[object]:
        if not resolved:
            raise socket.gaierror
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, 1, 6, "", (a, port)) for a in resolved
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert list(await resolve_host("pods", 1)) == expected


async def test_an_invalid_name_has_no_address() -> None:
    assert not await resolve_host("a" * 64 + ".example", 1)


async def test_a_hanging_resolver_does_not_delay_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        release.wait(20)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    endpoints = Endpoints("b", [PODS])
    hosts = Hosts()
    endpoint_monitor = EndpointMonitor(endpoints, QUICK, hosts.check, hosts)
    endpoint_monitor.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await endpoint_monitor.stop()
    hanging = [each for each in threading.enumerate() if each.name == "infergate"]
    assert hanging
    assert all(each.daemon for each in hanging)
    release.set()
    for each in hanging:
        each.join(10)
