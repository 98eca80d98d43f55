"""A pooled HTTP/1.1 client, independent of the response parser.

- Rule 1. Only requests that are safe to repeat are sent twice: a GET or HEAD on a connection that
  the backend was just closing is repeated on a new connection. A POST never is.
- Rule 2. No cookies, redirects or proxies. Content encodings are never requested; if a response
  has one, it is decoded one piece at a time.
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
    """An ``HttpUpstream`` over HTTP/1.1."""

    def __init__(
        self, limits: Limits, tls: ClientTls | None, make: Make[Exchange], read: Read
    ) -> None:
        """``create`` makes connections for complete responses; ``create_reader`` parses responses
        that may be streams. ``tls`` as in ``EndpointPools``."""
        self._limits: Final = limits
        self._pools: Final = Pools(limits, make, tls)
        self._streams: Final = Pools(limits, functools.partial(EventExchange, read), tls)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send a request and return the complete response within ``timeout`` seconds."""
        response = await self._exchange(wire, endpoint, timeout)
        if "content-encoding" in response.headers:
            return await _inflated(response, self._limits.body, wire.memory)
        return response

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
        """Send a request and yield the data of each event as a response; other responses are
        yielded whole.

        Each stream has a new connection: an idle one might just be closing, and nothing is sent
        twice.
        """
        connect_timeout = self._limits.connect_time if timeout is None else timeout
        connection = await self._streams.of(endpoint).connect(connect_timeout)
        try:
            async with aclosing(connection.ask(wire, _target(wire, endpoint))) as responses:
                async for response in responses:
                    yield response
        except ValueError as error:
            raise _unsendable(error) from error
        finally:
            connection.close()

    async def drop(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint``."""
        await self._pools.drop(endpoint)
        await self._streams.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._pools.close()
        await self._streams.close()


async def _inflated(answer: HttpResponse, most: int, memory: MemoryShare) -> HttpResponse:
    """Decode the gzip or deflate content encoding of ``answer``.

    It is present only if an operator forwards Accept-Encoding.
    """
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
        raise garbage(
            f"the backend's response cannot be used: the {encoding} body {error}"
        ) from None
    except Oversized:
        message = (
            f"the backend's response cannot be used: the body is over the limit of {most} bytes"
        )
        raise garbage(message) from None
    headers = {
        name: message for name, message in answer.headers.items() if name != "content-encoding"
    }
    return replace(answer, headers=headers, body=[body])


def _target(wire: HttpRequest, endpoint: Endpoint) -> str:
    target = endpoint.path + wire.path or "/"
    return f"{target}?{wire.query}" if wire.query else target


def _unsendable(error: ValueError) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"cannot be sent over HTTP: {error}")
