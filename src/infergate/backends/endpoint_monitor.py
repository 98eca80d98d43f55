"""Background tasks for the endpoints of a backend: they resolve DNS names or watch a service's
addresses, check the health of servers, and close connections to removed addresses.

Tasks run from ``start`` to ``stop``. A backend with a single fixed address needs no tasks unless
its health checks are enabled explicitly.

*Rule 1.* Gateways must not run in lockstep: each period varies randomly by up to a tenth, the first
round of checks begins after a random part of a period, and the checks of a round are spread out.
*Rule 2.* A failure or a bug affects only one endpoint or name, and the next round starts as usual.
Bugs are logged."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from infergate.backends.endpoints import EndpointHandle, Endpoints
from infergate.core.daemon_threads import to_daemon_thread
from infergate.core.hosts import is_ip_address
from infergate.core.log_events import BUG
from infergate.transport.base import SupportsDisconnect

_log = logging.getLogger(__name__)
_STREAM: Final = socket.SOCK_STREAM
_JITTER: Final = 0.1
"""The maximum fraction by which a period is shortened or lengthened."""
_SPREAD: Final = 0.5
"""The fraction of a period over which the checks of a round are spread."""

ResolveHost = Callable[[str, int], Awaitable[Collection[str]]]
"""Returns the addresses of a host name for a port, or an empty collection if the lookup fails."""
CheckHealth = Callable[[EndpointHandle, float], Awaitable[bool]]
"""Returns whether an endpoint is healthy. The second argument is a timeout in seconds."""


class AddressWatch(Protocol):
    """A watch of the addresses of a backend's only configured endpoint, which is a DNS name. Until
    ``has_listed`` is set, the name is resolved by DNS."""

    @property
    def has_listed(self) -> bool:
        """Whether the addresses have been read at least once."""
        ...

    def known_addresses(self) -> Sequence[tuple[str, int]] | None:
        """Return addresses and ports that are known before the watch runs, or None. Called once."""
        ...

    async def run(
        self,
        on_change: Callable[[Sequence[tuple[str, int]]], None],
        on_state: Callable[[bool], None],
    ) -> NoReturn:
        """Call ``on_change`` with all addresses and ports whenever they may have changed. Call
        ``on_state`` with true when the addresses are up to date, and with false when an attempt to
        read or watch them has failed."""
        ...


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """The settings of DNS lookups and health checks. ``resolve_interval`` (the time between lookups
    of a DNS name), ``check_interval`` and ``check_timeout`` are in seconds. ``health_checks``
    enables or disables health checks; None enables them if there are several servers."""

    resolve_interval: float = 5.0
    health_checks: bool | None = None
    check_interval: float = 5.0
    check_timeout: float = 2.0


async def resolve_host(name: str, port: int) -> Collection[str]:
    """Return the addresses from the system's resolver: the IPv4 addresses or, if there are no IPv4
    addresses, the IPv6 addresses. A server with an address of each family therefore counts once.

    The lookup runs in a daemon thread, so that a hanging resolver does not delay the exit of the
    process.
    """

    def resolve() -> dict[int, list[str]]:
        by_family: dict[int, list[str]] = {}
        with suppress(OSError, UnicodeError):  # UnicodeError: the host name is invalid
            for family, _, _, _, address in socket.getaddrinfo(name, port, type=_STREAM):
                by_family.setdefault(family, []).append(str(address[0]))
        return by_family

    try:
        addresses = await to_daemon_thread(resolve)
    except RuntimeError:  # the system cannot start a thread now
        return ()
    return addresses.get(socket.AF_INET) or addresses.get(socket.AF_INET6) or ()


def is_dns_name(host: str) -> bool:
    """Return whether ``host`` is the name of another machine, whose addresses may change."""
    is_local = not host or host == "localhost" or host.endswith(".localhost")
    return not is_local and not is_ip_address(host)


class EndpointMonitor:
    """Monitors ``endpoints``. ``check`` tests the health of an endpoint, and ``upstream`` closes
    the connections to removed addresses."""

    def __init__(  # noqa: PLR0913 - dependency injection
        self,
        endpoints: Endpoints,
        settings: MonitoringSettings,
        check: CheckHealth,
        upstream: SupportsDisconnect | None,
        resolve: ResolveHost = resolve_host,
        *,
        watch: AddressWatch | None = None,
    ) -> None:
        self._endpoints: Final = endpoints
        self._settings: Final = settings
        self._check: Final = check
        self._upstream: Final = upstream
        self._resolve: Final = resolve
        self._watch: Final = watch
        self._tasks: list[asyncio.Task[None]] = []
        self._suspect_checks: Final[set[asyncio.Task[None]]] = set()
        self._dns_indices: Final = [
            index for index, entry in enumerate(endpoints.configured) if entry.uses_dns
        ]

    def start(self) -> None:
        """Start the background tasks if they are not running."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            addresses = None if self._watch is None else self._watch.known_addresses()
            if addresses is not None:
                self._endpoints.set_watched_addresses(0, addresses)
            self._tasks = [loop.create_task(each) for each in self._needed_loops()]

    async def stop(self) -> None:
        """Stop all tasks."""
        tasks, self._tasks = [*self._tasks, *self._suspect_checks], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_suspected(self, handle: EndpointHandle) -> None:
        """Check an endpoint now, and pass the result to ``Endpoints.finish_suspect_check``."""
        task = asyncio.get_running_loop().create_task(self._check_suspected(handle))
        self._suspect_checks.add(task)
        task.add_done_callback(self._suspect_checks.discard)

    async def _check_suspected(self, handle: EndpointHandle) -> None:
        is_healthy: bool | None = None
        try:
            is_healthy = await self._run_check(handle)
        finally:
            self._endpoints.finish_suspect_check(handle, is_healthy=is_healthy is not False)

    async def _run_check(self, handle: EndpointHandle) -> bool | None:
        try:
            return await self._check(handle, self._settings.check_timeout)
        except Exception:  # noqa: BLE001 - a bug must not end the task
            _log.exception("bug in the health check of %s", handle.endpoint, extra=BUG)
            return None

    def _needed_loops(self) -> list[Coroutine[Any, Any, None]]:
        checks = self._settings.health_checks
        if checks is None:
            checks = bool(self._dns_indices) or len(self._endpoints.configured) > 1
        loops = [self._resolve_loop(index) for index in self._dns_indices]
        if self._watch is not None:
            loops.append(self._watch_loop(self._watch))
        return [*loops, self._check_loop()] if checks else loops

    @property
    def is_checking(self) -> bool:
        """Whether health checks run now."""
        return (
            self._endpoints.has_several
            if self._settings.health_checks is None
            else self._settings.health_checks
        )

    async def _watch_loop(self, watch: AddressWatch) -> None:
        endpoints = self._endpoints
        while True:
            try:
                await watch.run(
                    lambda addresses: endpoints.set_watched_addresses(0, addresses),
                    lambda is_current: endpoints.record_watch(0, is_current=is_current),
                )
            except Exception:  # noqa: BLE001 - a bug must not end the task
                _log.exception(
                    "bug while watching %s", endpoints.configured[0].endpoint.host, extra=BUG
                )
            await asyncio.sleep(_with_jitter(self._settings.resolve_interval))

    async def _resolve_loop(self, index: int) -> None:
        configured = self._endpoints.configured[index].endpoint
        while True:
            try:
                if self._watch is None or not self._watch.has_listed:
                    addresses = await self._resolve(configured.host, configured.port)
                    if self._watch is None or not self._watch.has_listed:
                        self._endpoints.set_addresses(index, addresses)
                if self._upstream is not None:
                    for endpoint in self._endpoints.pop_drained():
                        await self._upstream.disconnect(endpoint)
            except Exception:  # noqa: BLE001 - a bug must not end the task
                _log.exception("bug while resolving %s", configured.host, extra=BUG)
            await asyncio.sleep(_with_jitter(self._settings.resolve_interval))

    async def _check_loop(self) -> None:
        await asyncio.sleep(random.random() * self._settings.check_interval)  # noqa: S311 - no secret
        while True:
            started = time.monotonic()
            if self.is_checking:
                handles = self._endpoints.all_handles()
                interval = self._settings.check_interval * _SPREAD / len(handles)
                await asyncio.gather(
                    *(
                        self._check_one(handle, interval * index)
                        for index, handle in enumerate(handles)
                    )
                )
            pause = started + _with_jitter(self._settings.check_interval) - time.monotonic()
            await asyncio.sleep(max(0.0, pause))

    async def _check_one(self, handle: EndpointHandle, delay: float) -> None:
        await asyncio.sleep(delay)
        if handle not in self._endpoints.all_handles():  # removed: a check would reconnect
            return
        is_healthy = await self._run_check(handle)
        if is_healthy is not None:
            handle.record_check(is_healthy=is_healthy)


def _with_jitter(period: float) -> float:
    return period * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
