"""An upstream each of whose exchanges is a span of a trace, and tells its server so.

*Rule 1.* To which request an exchange belongs its message's ``traceparent`` says, as sending has
put it there. Without one nothing is traced: checks of health are nobody's request.
*Rule 2.* Each try is an exchange of its own: retries and hedges are spans side by side.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from infergate.backends.carriers import HeaderAccess
from infergate.core.tracing import TRACEPARENT, Asking, Tracing
from infergate.transport.base import Dropping, Endpoint, StreamUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class TracedUpstream(Generic[Req, Resp]):
    """``upstream``, which has streams, of ``backend``. ``tells``: its servers are told of the
    trace."""

    def __init__(
        self,
        upstream: Upstream[Req, Resp],
        headers: HeaderAccess[Req, Resp],
        tracing: Tracing,
        backend: str,
        *,
        tells: bool,
    ) -> None:
        self._upstream: Final = upstream
        self._headers: Final = headers
        self._tracing: Final = tracing
        self._backend: Final = backend
        self._tells: Final = tells

    async def exchange(self, wire: Req, endpoint: Endpoint, timeout: float) -> Resp:
        """See Upstream."""
        traceparent = self._headers.sent(wire).get(TRACEPARENT)
        if traceparent is None:
            return await self._upstream.exchange(wire, endpoint, timeout)
        asking = self._tracing.ask(traceparent, self._backend, str(endpoint))
        told = self._told(wire, asking)
        if asking is None:
            return await self._upstream.exchange(told, endpoint, timeout)
        try:
            answer = await self._upstream.exchange(told, endpoint, timeout)
        except BaseException as error:
            asking.end(error)
            raise
        asking.answered(self._headers.status(answer))
        asking.end()
        return answer

    async def stream(
        self, wire: Req, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp, None]:
        """See StreamUpstream."""
        upstream = self._upstream
        assert isinstance(upstream, StreamUpstream)
        traceparent = self._headers.sent(wire).get(TRACEPARENT)
        asking, told = None, wire
        if traceparent is not None:
            asking = self._tracing.ask(traceparent, self._backend, str(endpoint))
            told = self._told(wire, asking)
        failure: BaseException | None = None
        try:
            async with aclosing(upstream.stream(told, endpoint, timeout)) as answers:
                async for answer in answers:
                    if asking is not None:
                        asking.answered(self._headers.status(answer))
                        asking.received()
                    yield answer
        except GeneratorExit:  # no more of it is wanted, which is no failure
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            if asking is not None:
                asking.end(failure)
            del failure  # an error knows the frames that it goes through

    def _told(self, wire: Req, asking: Asking | None) -> Req:
        """A copy where it says something else: another try of it may be under way."""
        if asking is None and self._tells:
            return wire
        headers = dict(self._headers.sent(wire))
        if asking is None or not self._tells:
            del headers[TRACEPARENT]
        else:
            headers[TRACEPARENT] = asking.traceparent
        return self._headers.with_headers(wire, headers)

    async def drop(self, endpoint: Endpoint) -> None:
        """See Dropping."""
        if isinstance(self._upstream, Dropping):
            await self._upstream.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()
