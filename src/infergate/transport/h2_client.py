"""A gRPC client on an HTTP/2 engine of our own.

*Strategy.* A few connections an endpoint: a call takes the first that has room, and another one is
made only where none has. A connection counts when the server's settings have come.

*Rule 1.* CONNECT is raised only where the call surely was not looked at: no connection could be
made, or the server said so (REFUSED_STREAM, or a GOAWAY that leaves it out), and said so again of a
second try. Everything doubtful is BACKEND_GARBAGE, which nobody retries.
*Rule 2.* A call that is cancelled, late or wrong is reset; its connection goes on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from infergate.core.certificates import ClientTls
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.wire import RpcRequest, RpcResponse, size
from infergate.transport.base import Endpoint
from infergate.transport.connecting import connected, origin_of
from infergate.transport.h2.messages import OVERHEAD
from infergate.transport.h2_asking import ClientLink, NoHttp2, Untouched
from infergate.transport.h2_client_calls import AskedOnce, AskedStream
from infergate.transport.tls import NO_HTTP2, NO_TLS, Trust

_MOST_CONNECTIONS: Final = 8
"""Connections of an endpoint; beyond that calls wait for others to end."""
_TRIES: Final = 2
_PROTOCOL: Final = "h2"


class H2Upstream:
    """An :data:`~infergate.transport.base.RpcUpstream`, with streams. ``tls``: see ``Pools``."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        self._limits: Final = limits
        self._trust = None if tls is None else Trust(tls, _PROTOCOL)
        self._sites: dict[Endpoint, _Site] = {}

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`.

        A status that the server sent, whatever its code, is an :class:`RpcResponse`.
        """
        self._check(wire)
        site = self._sites.get(endpoint) or self._open(endpoint)
        deadline = site.loop.time() + timeout
        for _ in range(_TRIES):
            link = site.free() or await site.link(deadline)
            asked = AskedOnce(link, wire, deadline)
            try:
                return await asked.answer()
            except Untouched as untouched:
                reason = untouched
        raise _unreached(endpoint, reason)

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """Send one message and no other, give each that comes. See
        :class:`~infergate.transport.base.StreamUpstream`.

        A status of the server other than OK is the last :class:`RpcResponse`. Metadata comes with
        the first message and, where there is any, with a last one that holds none.
        """
        self._check(wire)
        site = self._sites.get(endpoint) or self._open(endpoint)
        deadline = None if timeout is None else site.loop.time() + timeout
        for _ in range(_TRIES):
            link = site.free() or await site.link(deadline)
            asked = AskedStream(link, wire, deadline)
            try:
                while (answer := await asked.next()) is not None:
                    yield answer
            except Untouched as untouched:
                reason = untouched
            else:
                return
            finally:
                asked.close()
        raise _unreached(endpoint, reason)

    def _check(self, wire: RpcRequest) -> None:
        if size(wire.message) > self._limits.body + OVERHEAD:
            raise GatewayError(
                Kind.TOO_LARGE, f"the message is over the limit of {self._limits.body} bytes"
            )

    def _open(self, endpoint: Endpoint) -> _Site:
        if endpoint.tls and self._trust is None:
            self._trust = Trust(None, _PROTOCOL)
        trust = self._trust if endpoint.tls else None
        made = self._sites[endpoint] = _Site(endpoint, self._limits, trust)
        return made

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        if (site := self._sites.pop(endpoint, None)) is not None:
            await site.close()

    async def close(self) -> None:
        """Close all connections."""
        sites, self._sites = list(self._sites.values()), {}
        await asyncio.gather(*(site.close() for site in sites))


def _unreached(endpoint: Endpoint, reason: BaseException) -> GatewayError:
    public = "the backend could not be reached"
    if isinstance(reason, NoHttp2):
        public = NO_HTTP2
    elif isinstance(reason, ssl.SSLError):
        public = NO_TLS
    return GatewayError(
        Kind.CONNECT,
        public,
        origin=origin_of(reason),
        detail=f"{endpoint}: {reason!r}",
    )


class _Site:
    """The connections to one endpoint, and the calls that wait for room on them."""

    def __init__(self, endpoint: Endpoint, limits: Limits, trust: Trust | None) -> None:
        self._endpoint: Final = endpoint
        self._limits: Final = limits
        self.loop: Final = asyncio.get_running_loop()
        self._trust: Final = trust
        self._links: list[ClientLink] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def free(self) -> ClientLink | None:
        """A connection on which a call may be made now."""
        for link in self._links:
            if link.core.has_room:
                return link
        return None

    async def link(self, deadline: float | None) -> ClientLink:
        """The same, made or waited for until ``deadline`` (loop time). Raises CONNECT, TIMEOUT."""
        while (link := self.free()) is None:
            if len(self._links) < _MOST_CONNECTIONS and self._connecting is None:
                self._connecting = self.loop.create_task(self._connect())
                self._connecting.add_done_callback(self._connect_over)
            await self._changes(deadline)
        if self._waiting:  # there may be room for more than one
            self.changed()
        return link

    async def _changes(self, deadline: float | None) -> None:
        """Wait in turn for ``changed``. Raises CONNECT, TIMEOUT."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.changed()  # it was this one's turn, and now is the next one's
            if isinstance(error, TimeoutError):
                raise GatewayError(
                    Kind.TIMEOUT,
                    "the backend could not be reached in time",
                    origin=Origin.BACKEND,
                    detail=str(self._endpoint),
                ) from None
            raise
        finally:
            del waiter  # it knows its error, which knows this frame, and those of messages above

    async def _connect(self) -> None:
        link: ClientLink | None = None
        try:
            async with asyncio.timeout(self._limits.connect_time):
                link = await connected(self.loop, self._new, self._endpoint, self._trust)
                await link.ready(_PROTOCOL if self._trust is not None else "")
        except BaseException:
            if link is not None:
                link.abort()
            raise

    def _new(self) -> ClientLink:
        return ClientLink(self.loop, self._endpoint, self._limits, self.opened, self.changed)

    def _connect_over(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        error = None if task.cancelled() else task.exception()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if each.done():
                continue
            if error is None:  # some find room, and the first that does not makes one more
                each.set_result(None)
            else:  # each gets an error of its own: who catches one may change it
                each.set_exception(_unreached(self._endpoint, error))

    def opened(self, link: ClientLink) -> None:
        """``link`` may be used from now on."""
        self._links.append(link)

    def changed(self, link: ClientLink | None = None) -> None:
        """There may be room again; ``link`` is closed or takes no more calls."""
        if link is not None:
            if link not in self._links:
                return
            self._links.remove(link)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if link is None:
                    return

    async def close(self) -> None:
        """Close all connections."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        for link in tuple(self._links):
            link.abort()
            await link.over
