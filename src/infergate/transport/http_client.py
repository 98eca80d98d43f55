"""A pooled HTTP/1.1 client, whatever reads the answers.

*Strategy.* See ``pool``.

*Rule 1.* Only what may safely be sent twice is: a GET or HEAD that met a connection which the
backend was just closing goes out once more, on a fresh connection. A POST never does.
*Rule 2.* No cookies, redirects or proxies. A content encoding, for which the client does not ask,
is undone a piece at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from infergate.core.certificates import ClientTls
from infergate.core.errors import GatewayError, Kind, garbage
from infergate.core.inflation import MAX_MEMBERS, Corrupt, Oversized, pieces, window_of
from infergate.core.limits import Limits
from infergate.core.memory import MemoryShare
from infergate.core.wire import HttpRequest, HttpResponse, joined
from infergate.transport.base import Endpoint
from infergate.transport.http_events import EventExchange
from infergate.transport.http_exchange import Exchange, Read
from infergate.transport.inflating import Late, inflated
from infergate.transport.pool import Make, Pools, StaleError

_SAFE: Final = frozenset({"GET", "HEAD"})


class Http1Upstream:
    """An :data:`~infergate.transport.base.HttpUpstream`."""

    def __init__(
        self, limits: Limits, tls: ClientTls | None, make: Make[Exchange], read: Read
    ) -> None:
        """``make`` makes a connection for whole answers, ``read`` reads those that may be streams;
        ``tls``: see ``Pools``."""
        self._limits: Final = limits
        self._pools: Final = Pools(limits, make, tls)
        self._streams: Final = Pools(limits, functools.partial(EventExchange, read), tls)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`."""
        answer = await self._exchange(wire, endpoint, timeout)
        if "content-encoding" in answer.headers:
            return await _inflated(answer, self._limits.body, wire.memory)
        return answer

    async def _exchange(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float
    ) -> HttpResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools.of(endpoint)
        target = _target(wire, endpoint)
        try:
            connection = pool.take()
            if connection is not None:
                try:
                    return await connection.ask(wire, target, deadline)
                except StaleError:
                    if wire.method not in _SAFE:
                        raise
            connection = await pool.connect(deadline - loop.time())
            return await connection.ask(wire, target, deadline)
        except ValueError as error:
            raise _unsendable(error) from error

    async def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send, and give each event of the answer as an answer of its own, whose body is the
        event's data; an answer that is no stream of events as it is. See
        :class:`~infergate.transport.base.StreamUpstream`.

        Each has a connection of its own: one that was idle might just be closing, and nothing is
        sent twice.
        """
        patience = self._limits.connect_time if timeout is None else timeout
        connection = await self._streams.of(endpoint).connect(patience)
        try:
            async with aclosing(connection.ask(wire, _target(wire, endpoint))) as answers:
                async for answer in answers:
                    yield answer
        except ValueError as error:
            raise _unsendable(error) from error
        finally:
            connection.close()

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        await self._pools.drop(endpoint)
        await self._streams.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._pools.close()
        await self._streams.close()


async def _inflated(answer: HttpResponse, most: int, memory: MemoryShare) -> HttpResponse:
    """``answer`` without its content encoding, where that is gzip or deflate. Nobody asks for one,
    but where an operator forwards Accept-Encoding."""
    data = joined(answer.body)
    encoding = answer.headers["content-encoding"].strip().lower()
    window = window_of(encoding, data)
    if window is None:
        return answer
    try:
        body = inflated(pieces(data, window, most, MAX_MEMBERS), len(data), most)
        if isinstance(body, Late):
            body = await body.whole(memory)
    except Corrupt as error:
        raise garbage(f"the backend's answer cannot be used: the {encoding} body {error}") from None
    except Oversized:
        told = f"the backend's answer cannot be used: the body is over the limit of {most} bytes"
        raise garbage(told) from None
    headers = {name: told for name, told in answer.headers.items() if name != "content-encoding"}
    return replace(answer, headers=headers, body=[body])


def _target(wire: HttpRequest, endpoint: Endpoint) -> str:
    target = endpoint.path + wire.path or "/"
    return f"{target}?{wire.query}" if wire.query else target


def _unsendable(error: ValueError) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"cannot be sent over HTTP: {error}")
