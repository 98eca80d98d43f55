"""Outages of a soak's servers, which happen one at a time, and changes of the gateway's
configuration.

*Rule.* An outage is over when the server responds again, the gateway reports all endpoints as up,
and another request has succeeded. By then, every broken connection has been detected. The next
outage begins after that.
"""

import asyncio
import http.client
import itertools
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final

from .soak_deployment import SoakGateway, SoakServer
from .soak_verdict import Counts, Outage, Outages, metric_sum

_RECOVERY: Final = 100.0
"""Seconds within which a server must recover. A busy machine may need much longer than the usual
second or two."""
_POLL: Final = 0.5


class Disturbances:
    """Outages of the servers ``left`` and ``right``. Only ``right`` is ever stopped."""

    def __init__(
        self,
        front: SoakGateway,
        left: SoakServer,
        right: SoakServer,
        outages: Outages,
        counts: Counts,
    ) -> None:
        self._front: Final = front
        self._left: Final = left
        self._right: Final = right
        self._outages: Final = outages
        self._counts: Final = counts

    async def run(self, until: float, pause: float) -> None:
        """Cause all kinds of outages in order, about ``pause`` seconds apart."""
        kinds: tuple[tuple[str, Callable[[SoakServer], Awaitable[None]]], ...] = (
            ("killed", self._kill),
            ("connections cut", _cut),
            ("hanging", _hang),
            ("garbled", _garble),
            ("ended and started", self._restart),
            ("refusing", _refuse),
        )
        for name, cause in itertools.cycle(kinds):
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
            if time.monotonic() > until:
                return
            server = self._right
            if cause in (_cut, _hang, _garble, _refuse):
                server = random.choice((self._left, self._right))
            await self._outage(f"{server.name} {name}", cause(server))

    async def _outage(self, name: str, action: Awaitable[None]) -> None:
        self._counts.faults[name] += 1
        loop = asyncio.get_running_loop()
        outage = Outage(name, loop.time())
        self._outages.all.append(outage)
        await action
        if not await asyncio.to_thread(_happens_in_time, self._is_recovered):
            self._counts.unexplained[f"{name}: the gateway did not use the server again"] += 1
        await asyncio.to_thread(self._front.gateway.metrics)
        outage.ended = loop.time()

    def _is_recovered(self) -> bool:
        addresses = [
            line.rpartition(" ")
            for line in self._front.gateway.metrics().splitlines()
            if line.startswith("infergate_endpoint_addresses{")
        ]
        down = [name for name, _, count in addresses if float(count) and "available" not in name]
        return bool(addresses) and not down

    async def _kill(self, server: SoakServer) -> None:
        await server.kill()
        await server.start()

    async def _restart(self, server: SoakServer) -> None:
        await server.end()
        await server.start()


def _happens_in_time(condition: Callable[[], bool]) -> bool:
    """Poll ``condition``, and return whether it returns true within ``_RECOVERY`` seconds."""
    deadline = time.monotonic() + _RECOVERY
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(_POLL)
    return False


async def _cut(server: SoakServer) -> None:
    for each in server.proxies.values():
        each.cut()


async def _garble(server: SoakServer) -> None:
    for each in server.proxies.values():
        each.garble()


async def _hang(server: SoakServer) -> None:
    for each in server.proxies.values():
        each.hang()
    await asyncio.sleep(random.uniform(0.5, 3))
    for each in server.proxies.values():
        each.flow()


async def _refuse(server: SoakServer) -> None:
    for each in server.proxies.values():
        each.shut()
    await asyncio.sleep(random.uniform(0.5, 3))
    for each in server.proxies.values():
        await each.open()


class Reloads:
    """Reloads the configuration of ``front`` by every method."""

    def __init__(self, front: SoakGateway, counts: Counts) -> None:
        self._front: Final = front
        self._counts: Final = counts

    async def run(self, until: float, pause: float) -> None:
        """Reload about every ``pause`` seconds. Every fourth configuration is invalid."""
        kinds = (
            ("by POST", self._by_post),
            ("of a changed file", self._of_changed_file),
            ("by SIGHUP", self._by_sighup),
            ("with a mistake", self._with_mistake),
        )
        for name, reload in itertools.cycle(kinds):
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
            if time.monotonic() > until:
                return
            if await asyncio.to_thread(reload):
                self._counts.good[f"reload {name}"] += 1
            else:
                self._counts.unexplained[f"reload {name}: the reload had no effect"] += 1

    def _by_post(self) -> bool:
        self._front.write(self._front.next_config())
        return self._post() == http.client.OK

    def _of_changed_file(self) -> bool:
        before = self._reloads()
        self._front.write(self._front.next_config())
        return _happens_in_time(lambda: self._reloads() > before)

    def _by_sighup(self) -> bool:
        before = self._reloads()
        os.kill(self._front.gateway.pid, signal.SIGHUP)
        return _happens_in_time(lambda: self._reloads() > before)

    def _reloads(self) -> float:
        metrics = self._front.gateway.metrics()
        return metric_sum(metrics, "infergate_config_reloads_total", 'result="ok"')

    def _with_mistake(self) -> bool:
        good = self._front.file.read_text()
        self._front.file.write_text(good.replace("idempotent: true", "idempotent: perhaps"))
        is_rejected = self._post() == http.client.INTERNAL_SERVER_ERROR
        self._front.write(self._front.next_config())
        return is_rejected and self._post() == http.client.OK

    def _post(self) -> int:
        connection = http.client.HTTPConnection(self._front.gateway.admin, timeout=_RECOVERY)
        try:
            connection.request("POST", "/reload")
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()
