"""How a message reaches an endpoint of its backend, and how its answer comes back.

*Rule 1.* The shorter of the client's deadline and the timeout (the route's; if it has none, the
backend's) bounds every exchange and travels upstream.
*Rule 2.* An exchange is tried again only where nothing was sent (CONNECT); anything else may have
been carried out.
*Rule 3.* A stream is a call of its own for each request. Its deadline is the client's alone, which
travels; the timeout bounds the wait for each message. Once a message has come nothing is tried
again.
*Rule 4.* All requests of a sequence go to one endpoint, which alone has its state: they are never
tried on another (docs/decisions/0013).
*Rule 5.* Of each attempt the endpoints are told how it ended.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from infergate.backends.base import named
from infergate.backends.carriers import HeaderAccess
from infergate.backends.endpoints import Endpoints, Lease, Outcome
from infergate.backends.headers import HeaderRule
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.sequences import SequenceName
from infergate.transport.base import StreamUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_ATTEMPTS: Final = 2  # HAProxy and Envoy retry a refused connection once
_SHOWN: Final = 40
"""Characters of a sequence's id in an error."""
_FAULTS: Final = frozenset({Kind.CONNECT, Kind.BACKEND_GARBAGE})
"""What is the endpoint's doing, whatever it was asked."""
_ROUNDING: Final = 0.05
"""Seconds by which a wait that used up the whole timeout may look shorter."""


class Sending(Generic[Req, Resp]):
    """Sends messages to ``endpoints`` over ``upstream``, each within ``timeout`` seconds where its
    route has no other."""

    def __init__(  # noqa: PLR0913 - what a message needs on its way
        self,
        backend: str,
        endpoints: Endpoints,
        upstream: Upstream[Req, Resp],
        headers: HeaderAccess[Req, Resp],
        *,
        timeout: float,
        forwarded: HeaderRule,
        returned: HeaderRule,
        key: Callable[[Call], str] | None = None,
    ) -> None:
        """``key`` tells what requests that belong together have in common; None: nothing has."""
        self._backend: Final = backend
        self._endpoints: Final = endpoints
        self._upstream: Final = upstream
        self._headers: Final = headers
        self._timeout: Final = timeout
        self._forwarded: Final = forwarded
        self._returned: Final = returned
        self._key: Final = key

    def allowed(self, call: Call) -> float:
        """The route's timeout where it has one, else the backend's."""
        return self._timeout if call.timeout is None else call.timeout

    def forward(self, wire: Req, call: Call) -> None:
        """Put those of the client's headers that go on on ``wire``."""
        if forwarded := self._forwarded.select(call.headers):
            self._headers.add(wire, forwarded)

    async def exchange(self, wire: Req, call: Call, sequence: SequenceName | None = None) -> Resp:
        """Send ``wire`` to an endpoint, to that of its ``sequence`` if it has one, and wait for its
        answer, whatever it is."""
        began = time.monotonic()
        call.tighten(began + self.allowed(call))
        self.forward(wire, call)
        try:
            answer = await self._attempted(wire, call, self._choosing(call, sequence), sequence)
        finally:
            call.backend_seconds += time.monotonic() - began
        self._return(answer, call)
        return answer

    async def to(self, lease: Lease, wire: Req, call: Call) -> Resp:
        """Send ``wire``, which was forwarded, to ``lease`` alone before the call's deadline."""
        return await self._attempted(wire, call, lambda _: lease.take())

    async def _attempted(
        self,
        wire: Req,
        call: Call,
        choose: Callable[[list[Lease]], Lease],
        sequence: SequenceName | None = None,
    ) -> Resp:
        """The answer of an endpoint that ``choose`` gives, of those that were tried."""
        # An error knows the frames that it goes through, and those the message: where a name of
        # one of them were the error's, all of it would stay until cycles are collected.
        refused: list[GatewayError] = []
        tried: list[Lease] = []
        while len(tried) < _ATTEMPTS:
            assert call.deadline is not None
            began = time.monotonic()
            remaining = call.deadline - began
            if remaining <= 0:
                raise late(self._backend)
            lease = choose(tried)
            outcome = Outcome.UNTOLD
            try:
                answer = await self._upstream.exchange(wire, lease.endpoint, remaining)
                outcome = self._answered(answer)
            except GatewayError as error:
                outcome = self._failed(error, time.monotonic() - began, call)
                refused[:] = (named(error, self._backend),)
                if error.kind is not Kind.CONNECT:
                    raise refused.pop() from error
            else:
                return answer
            finally:
                lease.finished(outcome)
            tried.append(lease)
        raise refused.pop() if sequence is None else self._away(refused.pop(), sequence, tried)

    async def stream(
        self, wire: Req, call: Call, sequence: SequenceName | None
    ) -> AsyncGenerator[Resp, None]:
        """What an endpoint gives to ``wire``, as it is pulled. The upstream has streams."""
        upstream = self._upstream
        assert isinstance(upstream, StreamUpstream)
        self.forward(wire, call)
        refused: list[GatewayError] = []  # not a name: see _attempted
        tried: list[Lease] = []
        choose = self._choosing(call, sequence)
        while len(tried) < _ATTEMPTS:
            began = time.monotonic()
            left = None if call.whole is None else call.whole - began
            begun = False
            lease = choose(tried)
            outcome = Outcome.UNTOLD
            try:
                async with aclosing(upstream.stream(wire, lease.endpoint, left)) as messages:
                    while (message := await self._pull(messages, call)) is not None:
                        begun = True
                        outcome = self._answered(message)
                        self._return(message, call)
                        yield message
                        began = time.monotonic()
                    return
            except GatewayError as error:
                outcome = self._failed(error, time.monotonic() - began, call)
                refused[:] = (named(error, self._backend),)
                if begun or error.kind is not Kind.CONNECT:
                    raise refused.pop() from error
            finally:
                lease.finished(outcome)
            tried.append(lease)
        raise refused.pop() if sequence is None else self._away(refused.pop(), sequence, tried)

    async def _pull(self, messages: AsyncGenerator[Resp, None], call: Call) -> Resp | None:
        """The next of ``messages``, None after the last."""
        began = time.monotonic()
        call.tighten(began + self.allowed(call))
        assert call.deadline is not None
        try:
            async with asyncio.timeout(call.deadline - began):
                return await anext(messages, None)
        except TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT, "the backend did not answer in time", origin=Origin.BACKEND
            ) from None
        finally:
            call.backend_seconds += time.monotonic() - began

    def _choosing(
        self, call: Call, sequence: SequenceName | None
    ) -> Callable[[list[Lease]], Lease]:
        if sequence is not None:
            return lambda _: self._endpoints.keeper(sequence)
        if self._key is None:
            return self._endpoints.choose
        return functools.partial(self._endpoints.choose, key=self._key(call))

    def _answered(self, answer: Resp) -> Outcome:
        return Outcome.FAILED if self._headers.declines(answer) else Outcome.OK

    def _failed(self, error: GatewayError, seconds: float, call: Call) -> Outcome:
        """What ``error``, after so many seconds, says of the endpoint. One that was given less time
        than the operator gives cannot be blamed for needing more."""
        if error.kind is Kind.TIMEOUT:
            blamed = seconds >= self.allowed(call) - _ROUNDING
        else:
            blamed = error.kind in _FAULTS
        return Outcome.FAILED if blamed else Outcome.UNTOLD

    def _return(self, answer: Resp, call: Call) -> None:
        """Note those of the headers of ``answer`` that go back."""
        if headers := self._headers.read(answer):
            call.returned.update(self._returned.select(headers))

    def _away(
        self, error: GatewayError, sequence: SequenceName, tried: list[Lease]
    ) -> GatewayError:
        """``error`` telling which endpoint is away, by its place in the configuration."""
        place = self._endpoints.place(tried[-1])
        return GatewayError(
            error.kind,
            f"{error.public} ({place}, which alone has sequence "
            f"{repr(sequence.id)[:_SHOWN]} of model '{sequence.model}')",
            origin=error.origin,
            detail=error.detail,
            retry_after=error.retry_after,
        )


def late(backend: str) -> GatewayError:
    """There is no time left to ask ``backend``."""
    return GatewayError(Kind.TIMEOUT, f"backend '{backend}': the deadline has passed")
