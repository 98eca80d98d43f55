"""Background work for the endpoints of a backend: resolve DNS names, check servers' health, and
close connections to removed addresses.

*Strategy.* Tasks run from ``start`` to ``stop``, and only if there is work for them: a backend with
a single fixed address has none.

*Rule 1.* Gateways must not run in lockstep: periods vary randomly by a tenth, the first is cut to a
random part, and the checks of a round are spread out.
*Rule 2.* A failure, even a bug, affects only its own item: it is logged, and the next round runs.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from infergate.backends.endpoints import Endpoints, Lease
from infergate.core.vocabulary import BUG
from infergate.transport.base import Dropping

_log = logging.getLogger(__name__)
_STREAM: Final = socket.SOCK_STREAM
_JITTER: Final = 0.1
"""The fraction of a period by which it may be shorter or longer."""
_SPREAD: Final = 0.5
"""The fraction of a period over which the checks of a round are spread."""

Resolve = Callable[[str, int], Awaitable[Collection[str]]]
"""Returns the addresses of a host name for a port; none if it cannot be resolved."""
Check = Callable[[Lease, float], Awaitable[bool]]
"""Returns whether an endpoint is healthy, within a timeout in seconds."""


@dataclass(frozen=True, slots=True)
class Watching:
    """``resolve_interval``: seconds between lookups of a DNS name. ``health_checks``: whether
    servers are checked; None: only if there are several. ``check_interval`` and ``check_timeout``
    are in seconds."""

    refresh: float = 5.0
    checks: bool | None = None
    interval: float = 5.0
    timeout: float = 2.0


async def looked_up(name: str, port: int) -> Collection[str]:
    """Return the addresses given by the system's resolver: the IPv4 addresses if there are any,
    else the IPv6 addresses, so that a server with one of each is not counted twice.

    The lookup runs in a daemon thread, so that a resolver that hangs does not delay the end of the
    process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[dict[int, list[str]]] = loop.create_future()

    def set_result(by_family: dict[int, list[str]]) -> None:
        if not result.done():
            result.set_result(by_family)

    def resolve() -> None:
        by_family: dict[int, list[str]] = {}
        with suppress(OSError, UnicodeError):  # UnicodeError: not a valid host name
            for family, _, _, _, address in socket.getaddrinfo(name, port, type=_STREAM):
                by_family.setdefault(family, []).append(str(address[0]))
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_result, by_family)

    try:
        threading.Thread(target=resolve, name=f"looking up {name}", daemon=True).start()
    except RuntimeError:  # the system cannot start a thread now
        return ()
    found = await result
    return found.get(socket.AF_INET) or found.get(socket.AF_INET6) or ()


def is_name(host: str) -> bool:
    """Return whether ``host`` is a name whose addresses may change; names of this machine do not
    count."""
    if not host or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


class Watcher:
    """Monitors ``endpoints``. ``check`` checks the health of one; ``upstream`` closes
    connections."""

    def __init__(
        self,
        endpoints: Endpoints,
        rule: Watching,
        check: Check,
        dropping: Dropping | None,
        resolve: Resolve = looked_up,
    ) -> None:
        self._endpoints: Final = endpoints
        self._rule: Final = rule
        self._check: Final = check
        self._dropping: Final = dropping
        self._resolve: Final = resolve
        self._tasks: list[asyncio.Task[None]] = []
        self._judging: Final[set[asyncio.Task[None]]] = set()
        self._names: Final = [i for i, site in enumerate(endpoints.sites) if site.resolves]

    def start(self) -> None:
        """Start the background tasks, unless they are running."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(loop_function()) for loop_function in self._loops()]

    async def stop(self) -> None:
        """Stop all tasks."""
        tasks, self._tasks = [*self._tasks, *self._judging], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suspect(self, lease: Lease) -> None:
        """Check an endpoint once, now, and report the result to
        ``Endpoints.finish_suspect_check``."""
        task = asyncio.get_running_loop().create_task(self._judge(lease))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _judge(self, lease: Lease) -> None:
        is_healthy = True
        try:
            is_healthy = await self._check(lease, self._rule.timeout)
        except Exception:  # noqa: BLE001 - a bug must not end the task
            _log.exception("bug in the health check of %s", lease.endpoint, extra=BUG)
        finally:
            self._endpoints.judged(lease, well=is_healthy)

    def _loops(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = []
        loops += [functools.partial(self._look_up, index) for index in self._names]
        may_be_several = self._names or len(self._endpoints.sites) > 1
        if self._rule.checks or (self._rule.checks is None and may_be_several):
            loops.append(self._check_all)
        return loops

    @property
    def checks(self) -> bool:
        """Whether servers are checked at present."""
        return self._endpoints.spreads if self._rule.checks is None else self._rule.checks

    async def _look_up(self, site: int) -> None:
        configured = self._endpoints.sites[site].endpoint
        while True:
            try:
                self._endpoints.resolved(
                    site, await self._resolve(configured.host, configured.port)
                )
                if self._dropping is not None:
                    for endpoint in self._endpoints.left():
                        await self._dropping.drop(endpoint)
            except Exception:  # noqa: BLE001 - a bug must not end the task
                _log.exception("bug while resolving %s", configured.host, extra=BUG)
            await asyncio.sleep(_jittered(self._rule.refresh))

    async def _check_all(self) -> None:
        await asyncio.sleep(random.random() * self._rule.interval)  # noqa: S311 - no secret
        while True:
            started = time.monotonic()
            if self.checks:
                handles = self._endpoints.all()
                interval = self._rule.interval * _SPREAD / len(handles)
                await asyncio.gather(
                    *(
                        self._check_one(handle, interval * index)
                        for index, handle in enumerate(handles)
                    )
                )
            pause = started + _jittered(self._rule.interval) - time.monotonic()
            await asyncio.sleep(max(0.0, pause))

    async def _check_one(self, lease: Lease, delay: float) -> None:
        await asyncio.sleep(delay)
        if lease not in self._endpoints.all():  # removed: a check would open a new connection
            return
        try:
            is_healthy = await self._check(lease, self._rule.timeout)
        except Exception:  # noqa: BLE001 - a bug must not end the task
            _log.exception("bug in the health check of %s", lease.endpoint, extra=BUG)
            return
        lease.checked(well=is_healthy)


def _jittered(period: float) -> float:
    return period * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
