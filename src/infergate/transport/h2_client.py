"""A gRPC client on the gateway's own HTTP/2 engine.

Each endpoint has a small pool of connections: a call takes the first with a free stream, and a new
connection is made only if there is none. A connection enters the pool when the server's SETTINGS
have arrived.

- CONNECT is raised only if the server certainly did not process the call: no connection could be
  made, or the server refused the stream (REFUSED_STREAM, or a GOAWAY that excludes it) on two
  attempts. Anything doubtful is BACKEND_GARBAGE, which is never retried.
- A call that is cancelled, late or broken is reset; its connection stays open.
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
"""Connections per endpoint; beyond that, calls wait for others to end."""
_TRIES: Final = 2
_PROTOCOL: Final = "h2"


class H2Upstream:
    """An :data:`~infergate.transport.base.RpcUpstream` with streaming. `tls` has the authorities
    and the client certificate for TLS endpoints; None: the authorities of the system."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        self._limits: Final = limits
        self._trust = None if tls is None else Trust(tls, _PROTOCOL)
        self._sites: dict[Endpoint, _Site] = {}

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        """Send a request and wait for the whole response (see
        :class:`~infergate.transport.base.Upstream`).

        A status sent by the server, whatever its code, is an :class:`RpcResponse`.
        """
        self._check(wire)
        site = self._sites.get(endpoint) or self._open(endpoint)
        deadline = site.loop.time() + timeout
        for _ in range(_TRIES):
            link = site.free() or await site.link(deadline)
            call = AskedOnce(link, wire, deadline)
            try:
                return await call.answer()
            except Untouched as refused:
                reason = refused
        raise _unreached(endpoint, reason)

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """Send one message, and yield each response message (see
        :class:`~infergate.transport.base.StreamingUpstream`).

        A status of the server other than OK is the last :class:`RpcResponse`. Metadata comes with
        the first message and, if there is any at the end, with a last response without a message.
        """
        self._check(wire)
        site = self._sites.get(endpoint) or self._open(endpoint)
        deadline = None if timeout is None else site.loop.time() + timeout
        for _ in range(_TRIES):
            link = site.free() or await site.link(deadline)
            call = AskedStream(link, wire, deadline)
            try:
                while (response := await call.next()) is not None:
                    yield response
            except Untouched as refused:
                reason = refused
            else:
                return
            finally:
                call.close()
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
        site = self._sites[endpoint] = _Site(endpoint, self._limits, trust)
        return site

    async def drop(self, endpoint: Endpoint) -> None:
        """Close the connections to `endpoint`."""
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
    """The connections to one endpoint, and the calls that wait for a free stream."""

    def __init__(self, endpoint: Endpoint, limits: Limits, trust: Trust | None) -> None:
        self._endpoint: Final = endpoint
        self._limits: Final = limits
        self.loop: Final = asyncio.get_running_loop()
        self._trust: Final = trust
        self._links: list[ClientLink] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def free(self) -> ClientLink | None:
        """Return a connection on which a call can be made now, or None."""
        for link in self._links:
            if link.core.has_room:
                return link
        return None

    async def link(self, deadline: float | None) -> ClientLink:
        """Return such a connection; make or wait for one until `deadline` (loop time). Raises
        CONNECT and TIMEOUT."""
        while (link := self.free()) is None:
            if len(self._links) < _MOST_CONNECTIONS and self._connecting is None:
                self._connecting = self.loop.create_task(self._connect())
                self._connecting.add_done_callback(self._connect_over)
            await self._changes(deadline)
        if self._waiting:  # there may be capacity for more than one call
            self.changed()
        return link

    async def _changes(self, deadline: float | None) -> None:
        """Wait in line for a change of capacity. Raises CONNECT and TIMEOUT."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.changed()  # pass the wakeup on to the next waiter
            if isinstance(error, TimeoutError):
                raise GatewayError(
                    Kind.TIMEOUT,
                    "the backend could not be reached in time",
                    origin=Origin.BACKEND,
                    detail=str(self._endpoint),
                ) from None
            raise
        finally:
            del (
                waiter
            )  # break the cycle waiter → error → traceback → frame, which would keep messages

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
        for waiter in waiting:
            if waiter.done():
                continue
            if error is None:  # the first that finds no free stream makes another connection
                waiter.set_result(None)
            else:  # an error object of its own for each: handlers may modify it
                waiter.set_exception(_unreached(self._endpoint, error))

    def opened(self, link: ClientLink) -> None:
        """Add `connection`, which is ready, to the pool."""
        self._links.append(link)

    def changed(self, link: ClientLink | None = None) -> None:
        """Wake waiting calls: there may be free streams again. `connection`: it is closed or
        accepts no more calls."""
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
