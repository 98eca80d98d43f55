"""What is done for a backend's endpoints besides requests: names are looked up, servers are asked
how they are, and connections to those that left are closed.

*Strategy.* Tasks from ``start`` to ``stop``; none where there is nothing to do, so that a backend
of one address costs nothing.

*Rule 1.* Nothing here beats in time with other gateways: each period is drawn a little shorter or
longer, the first one much shorter, and the endpoints of a round are asked one after the other.
*Rule 2.* One failure changes nothing but what it is about, not even a bug's: it is logged, and the
next round comes.
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
"""The share of a period by which it may be shorter or longer."""
_SPREAD: Final = 0.5
"""The share of a period over which the checks of a round are spread."""

Resolve = Callable[[str, int], Awaitable[Collection[str]]]
"""The addresses of a name, for a port; none where it has none or cannot be looked up."""
Check = Callable[[Lease, float], Awaitable[bool]]
"""Whether an endpoint is well, found out within so many seconds."""


@dataclass(frozen=True, slots=True)
class Watching:
    """``refresh``: seconds between two looks at each name. ``checks``: whether servers are asked;
    None: where there are several. Every ``interval`` seconds, each to answer within ``timeout``."""

    refresh: float = 5.0
    checks: bool | None = None
    interval: float = 5.0
    timeout: float = 2.0


async def looked_up(name: str, port: int) -> Collection[str]:
    """The addresses that the system's resolver gives: IPv4 ones where there are any, else IPv6, for
    a server that has one of each would count twice.

    It is asked in a thread of its own, which nobody waits for at the end of the process: where DNS
    is away it takes the resolver many seconds to say so.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[dict[int, list[str]]] = loop.create_future()

    def tell(found: dict[int, list[str]]) -> None:
        if not told.done():
            told.set_result(found)

    def ask() -> None:
        found: dict[int, list[str]] = {}
        with suppress(OSError, UnicodeError):  # the latter of what no name can be
            for family, _, _, _, address in socket.getaddrinfo(name, port, type=_STREAM):
                found.setdefault(family, []).append(str(address[0]))
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, found)

    try:
        threading.Thread(target=ask, name=f"looking up {name}", daemon=True).start()
    except RuntimeError:  # the system has no thread for us now
        return ()
    by_family = await told
    return by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6) or ()


def is_name(host: str) -> bool:
    """Whether ``host`` stands for addresses that may change. This machine's own do not."""
    if not host or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


class Watcher:
    """For ``endpoints``. ``check`` asks one how it is; ``dropping`` closes connections."""

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
        """Begin. Once begun it goes on until ``stop``."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(each()) for each in self._loops()]

    async def stop(self) -> None:
        """End."""
        tasks, self._tasks = [*self._tasks, *self._judging], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suspect(self, lease: Lease) -> None:
        """Check ``lease`` now, once; ``Endpoints.judged`` gets the result."""
        task = asyncio.get_running_loop().create_task(self._judge(lease))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _judge(self, lease: Lease) -> None:
        well = True
        try:
            well = await self._check(lease, self._rule.timeout)
        except Exception:  # noqa: BLE001 - the last line: Rule 2
            _log.exception("a bug while checking %s", lease.endpoint, extra=BUG)
        finally:
            self._endpoints.judged(lease, well=well)

    def _loops(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        found: list[Callable[[], Coroutine[Any, Any, None]]] = []
        found += [functools.partial(self._look_up, site) for site in self._names]
        several = self._names or len(self._endpoints.sites) > 1
        if self._rule.checks or (self._rule.checks is None and several):
            found.append(self._check_all)
        return found

    @property
    def checks(self) -> bool:
        """Whether servers are asked as things stand."""
        return self._endpoints.spreads if self._rule.checks is None else self._rule.checks

    async def _look_up(self, site: int) -> None:
        name = self._endpoints.sites[site].endpoint
        while True:
            try:
                self._endpoints.resolved(site, await self._resolve(name.host, name.port))
                if self._dropping is not None:
                    for endpoint in self._endpoints.left():
                        await self._dropping.drop(endpoint)
            except Exception:  # noqa: BLE001 - the last line: Rule 2
                _log.exception("a bug while looking up %s", name.host, extra=BUG)
            await asyncio.sleep(_jittered(self._rule.refresh))

    async def _check_all(self) -> None:
        await asyncio.sleep(random.random() * self._rule.interval)  # noqa: S311 - no secret
        while True:
            began = time.monotonic()
            if self.checks:
                leases = self._endpoints.all()
                apart = self._rule.interval * _SPREAD / len(leases)
                await asyncio.gather(
                    *(self._check_one(lease, apart * i) for i, lease in enumerate(leases))
                )
            rest = began + _jittered(self._rule.interval) - time.monotonic()
            await asyncio.sleep(max(0.0, rest))

    async def _check_one(self, lease: Lease, delay: float) -> None:
        await asyncio.sleep(delay)
        if lease not in self._endpoints.all():  # its connections are closed, and nobody would again
            return
        try:
            well = await self._check(lease, self._rule.timeout)
        except Exception:  # noqa: BLE001 - the last line: Rule 2
            _log.exception("a bug while checking %s", lease.endpoint, extra=BUG)
            return
        lease.checked(well=well)


def _jittered(period: float) -> float:
    return period * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
