"""How a message reaches an endpoint of its backend, and how its answer comes back.

*Rule 1.* The shorter of the client's deadline and the timeout (the route's; if it has none, the
backend's) bounds every exchange and travels upstream.
*Rule 2.* What failed is tried again as its route wants (``retrying``, docs/decisions/0022): by
default only where nothing was sent, for anything else may have been carried out.
*Rule 3.* A stream is a call of its own for each request. Its deadline is the client's alone, which
travels; the timeout bounds the wait for each message. Once a message has come nothing is tried
again, and nothing of a stream is hedged.
*Rule 4.* All requests of a sequence go to one endpoint, which alone has its state: they are never
tried on another (docs/decisions/0013), nor sent twice.
*Rule 5.* Of each attempt the endpoints are told how it ended.
*Rule 6.* Where the operator bounds them, inferences wait for their turn; questions never do.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import named
from infergate.backends.carriers import HeaderAccess
from infergate.backends.endpoints import Endpoints, Lease, Outcome
from infergate.backends.headers import HeaderRule
from infergate.backends.hedging import hedged
from infergate.backends.queueing import Queue
from infergate.backends.retrying import Choose, Tries
from infergate.core.call import ROUNDING, Call
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import OPERATIONS, InferRequest
from infergate.core.retrying import Hedge
from infergate.core.sequences import SequenceName
from infergate.core.tally import Tally
from infergate.routing.budget import RetryBudget
from infergate.routing.latency import Latencies
from infergate.transport.base import StreamUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_SUCCESS: Final = (200, 0)
_QUESTIONS: Final = frozenset(OPERATIONS.values()) - {OPERATIONS[InferRequest]}
"""Operations of a model that may be answered by 503 although its server is well."""
_SHOWN: Final = 40
"""Characters of a sequence's id in an error."""


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
        budget: RetryBudget,
        queue: Queue | None,
        tally: Tally,
        key: Callable[[Call], str] | None = None,
    ) -> None:
        """``queue``: where inferences wait for their turn; None: they need not. ``key`` tells what
        requests that belong together have in common; None: nothing has."""
        self._backend: Final = backend
        self._endpoints: Final = endpoints
        self._upstream: Final = upstream
        self._headers: Final = headers
        self._timeout: Final = timeout
        self._forwarded: Final = forwarded
        self._returned: Final = returned
        self._budget: Final = budget
        self._queue: Final = queue
        self._tally: Final = tally
        self._key: Final = key
        self._latencies: Final[dict[str, Latencies]] = {}
        """Of routes that hedge after a percentile."""

    def over(self, upstream: Upstream[Req, Resp]) -> Sending[Req, Resp]:
        """The same over ``upstream``: to the same endpoints, in the same queue, counted alike."""
        other = copy.copy(self)
        vars(other)["_upstream"] = upstream
        return other

    def allowed(self, call: Call) -> float:
        """The route's timeout where it has one, else the backend's."""
        return self._timeout if call.timeout is None else call.timeout

    def forward(self, wire: Req, call: Call) -> None:
        """Put those of the client's headers that go on on ``wire``, and count its answer for the
        client's request."""
        self._headers.charge(wire, call.memory)
        if forwarded := self._forwarded.select(call.headers):
            self._headers.add(wire, forwarded)

    def exchange(
        self, wire: Req, call: Call, sequence: SequenceName | None = None
    ) -> Awaitable[Resp]:
        """Send ``wire`` to an endpoint, to that of its ``sequence`` if it has one, and wait for its
        answer, whatever it is."""
        if sequence is None and self._key is None and not call.retry.idempotent:
            return self._plainly(wire, call)
        return self._exchange(wire, call, sequence)

    async def _plainly(self, wire: Req, call: Call) -> Resp:
        """What nearly every exchange is: its first try, without what further ones need."""
        began = time.monotonic()
        call.tighten(began + self.allowed(call))
        assert call.deadline is not None
        seconds = call.deadline - began
        if seconds <= 0:
            raise late(self._backend)
        self.forward(wire, call)
        lease, budget, outcome = self._endpoints.choose(), self._budget, Outcome.UNTOLD
        budget.requests += 1
        try:
            answer = await self._upstream.exchange(wire, lease.endpoint, seconds)
            outcome = self._outcome(answer, call)
        except GatewayError as error:
            outcome = self._failed(error, time.monotonic() - began, call)
            if error.kind is not Kind.CONNECT:
                raise named(error, self._backend) from error
            tries = self._tries(call, None)
            tries.begun(lease, named(error, self._backend))
        else:
            self._return(answer, call)
            return answer
        finally:
            lease.finished(outcome)
            budget.requests -= 1
            call.backend_seconds += time.monotonic() - began
        return await self._timed(wire, tries)

    async def _exchange(self, wire: Req, call: Call, sequence: SequenceName | None) -> Resp:
        call.tighten(time.monotonic() + self.allowed(call))
        self.forward(wire, call)
        tries = self._tries(call, sequence)
        try:
            return await self._timed(wire, tries)
        except GatewayError as error:
            if sequence is None or error.kind is not Kind.CONNECT:
                raise
            raise self._away(error, sequence, tries) from error

    async def _timed(self, wire: Req, tries: Tries) -> Resp:
        call, began = tries.call, time.monotonic()
        try:
            answer = await self._tried(wire, tries)
        finally:
            call.backend_seconds += time.monotonic() - began
        self._return(answer, call)
        return answer

    def _tries(self, call: Call, sequence: SequenceName | None) -> Tries:
        if sequence is not None:
            return self._only(call, lambda: self._endpoints.keeper(sequence))
        choose: Choose = self._endpoints.choose
        if self._key is not None:
            choose = functools.partial(self._endpoints.choose, key=self._key(call))
        return Tries(call, choose, self._budget, self._tally, resend=call.retry.idempotent)

    def _only(self, call: Call, choose: Callable[[], Lease]) -> Tries:
        return Tries(call, lambda _: choose(), self._budget, self._tally, resend=False)

    def infer(self, wire: Req, call: Call, sequence: SequenceName | None = None) -> Awaitable[Resp]:
        """The same for an inference: in its turn, and hedged where its route wants that."""
        if self._queue is None and call.retry.hedge is None:
            return self.exchange(wire, call, sequence)
        return self._infer(wire, call, sequence)

    async def _infer(self, wire: Req, call: Call, sequence: SequenceName | None) -> Resp:
        began = time.monotonic()
        call.tighten(began + self.allowed(call))
        queue = self._queue
        if queue is not None:
            try:
                await queue.enter(call)
            finally:
                call.backend_seconds += time.monotonic() - began
        try:
            if sequence is None and call.retry.hedge is not None:
                return await self._hedged(wire, call, call.retry.hedge)
            return await self.exchange(wire, call, sequence)
        finally:
            if queue is not None:
                queue.leave()

    async def _hedged(self, wire: Req, call: Call, hedge: Hedge) -> Resp:
        """``exchange`` of a request that may be sent twice at once."""
        began = time.monotonic()
        self.forward(wire, call)
        latencies, delay = None, hedge.after
        if delay is None:
            latencies = self._latencies.get(call.route)
            if latencies is None:
                latencies = self._latencies[call.route] = Latencies(hedge.percentile)
            delay = latencies.percentile()
        tries = self._tries(call, None)
        first = self._tried(wire, tries)
        try:
            if delay is None:
                answer = await first
            else:
                answer, won = await hedged(
                    first, lambda: self._hedge(wire, tries), delay, self._serves
                )
                self._tally.hedged(won)
        finally:
            took = time.monotonic() - began
            call.backend_seconds += took
        if latencies is not None and self._serves(answer):
            latencies.add(took)
        self._return(answer, call)
        return answer

    def _hedge(self, wire: Req, tries: Tries) -> Coroutine[Any, Any, Resp] | None:
        """Another try beside the first, of another endpoint; None where there is none, or none that
        may be asked more now."""
        queue = self._queue
        if queue is not None and not queue.enter_now():
            return None
        lease = tries.hedge()
        if lease is not None:
            return self._second(wire, tries, lease)
        if queue is not None:
            queue.leave()
        return None

    async def _second(self, wire: Req, tries: Tries, lease: Lease) -> Resp:
        try:
            return await self._try(wire, tries, lease)
        finally:
            self._budget.give_back()
            if self._queue is not None:
                self._queue.leave()

    async def to(self, lease: Lease, wire: Req, call: Call) -> Resp:
        """Send ``wire``, which was forwarded, to ``lease`` alone before the call's deadline."""
        return await self._tried(wire, self._only(call, lease.take))

    async def _tried(self, wire: Req, tries: Tries) -> Resp:
        """The answer of an endpoint."""
        call = tries.call
        assert call.deadline is not None
        if call.deadline <= time.monotonic():
            raise late(self._backend)
        declined: Resp | None = None
        lease = None if tries.asked else tries.first()
        try:
            if lease is None:
                lease = await tries.next()
            while lease is not None:
                declined = None
                # An error knows the frames that it goes through, and those the message: where a
                # name of one of them were the error's, all of it would stay until cycles are
                # collected.
                try:
                    answer = await self._try(wire, tries, lease)
                    if not tries.resend or self._serves(answer):
                        return answer
                    declined = answer
                except GatewayError as error:
                    tries.refused(named(error, self._backend))
                lease = await tries.next()
        finally:
            tries.over()
        if declined is not None:
            return declined
        raise tries.error()

    async def _try(self, wire: Req, tries: Tries, lease: Lease) -> Resp:
        call = tries.call
        began = time.monotonic()
        assert call.deadline is not None
        seconds = call.deadline - began
        if tries.resend and call.retry.per_try is not None:
            seconds = min(seconds, call.retry.per_try)
        outcome = Outcome.UNTOLD
        try:
            answer = await self._upstream.exchange(wire, lease.endpoint, seconds)
            outcome = self._outcome(answer, call)
        except GatewayError as error:
            outcome = self._failed(error, time.monotonic() - began, call)
            raise
        finally:
            lease.finished(outcome)
        return answer

    async def stream(
        self, wire: Req, call: Call, sequence: SequenceName | None
    ) -> AsyncGenerator[Resp, None]:
        """What an endpoint gives to ``wire``, as it is pulled, in its turn. The upstream has
        streams."""
        queue = self._queue
        if queue is not None:
            call.tighten(time.monotonic() + self.allowed(call))
            await queue.enter(call)
        try:
            async with aclosing(self._stream(wire, call, sequence)) as messages:
                async for message in messages:
                    yield message
        finally:
            if queue is not None:
                queue.leave()

    async def _stream(
        self, wire: Req, call: Call, sequence: SequenceName | None
    ) -> AsyncGenerator[Resp, None]:
        upstream = self._upstream
        assert isinstance(upstream, StreamUpstream)
        self.forward(wire, call)
        tries = self._tries(call, sequence)
        lease: Lease | None = tries.first()
        try:
            while lease is not None:
                declined: Resp | None = None
                patience = call.retry.per_try if tries.resend else None
                began = time.monotonic()
                left = None if call.whole is None else call.whole - began
                begun = False
                outcome = Outcome.UNTOLD
                try:
                    async with aclosing(upstream.stream(wire, lease.endpoint, left)) as messages:
                        while (message := await self._pull(messages, call, patience)) is not None:
                            outcome = self._outcome(message, call)
                            if outcome is not Outcome.OK and tries.resend and not begun:
                                declined = message
                                break
                            begun, patience = True, None
                            self._return(message, call)
                            yield message
                            began = time.monotonic()
                        else:
                            return
                except GatewayError as error:
                    outcome = self._failed(error, time.monotonic() - began, call)
                    tries.refused(named(error, self._backend))
                    if begun:
                        raise tries.error() from error
                finally:
                    lease.finished(outcome)
                lease = await tries.next()
        finally:
            tries.over()
        if declined is not None:
            self._return(declined, call)
            yield declined
            return
        last = tries.error()
        try:
            if sequence is None or last.kind is not Kind.CONNECT:
                raise last
            raise self._away(last, sequence, tries)
        finally:
            del last

    async def _pull(
        self, messages: AsyncGenerator[Resp, None], call: Call, patience: float | None
    ) -> Resp | None:
        """The next of ``messages``, None after the last; waited for ``patience`` seconds at most,
        if they are given."""
        began = time.monotonic()
        call.tighten(began + self.allowed(call))
        assert call.deadline is not None
        seconds = call.deadline - began
        try:
            async with asyncio.timeout(seconds if patience is None else min(seconds, patience)):
                return await anext(messages, None)
        except TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT, "the backend did not answer in time", origin=Origin.BACKEND
            ) from None
        finally:
            call.backend_seconds += time.monotonic() - began

    def _serves(self, answer: Resp) -> bool:
        """Whether the endpoint that gave ``answer`` can serve."""
        return not self._headers.declines(answer)

    def _outcome(self, answer: Resp, call: Call) -> Outcome:
        """What ``answer`` says of its endpoint. One that declines to serve a model is blamed only
        if some endpoint has served that model: any client may ask for one that is not loaded, or
        whether it is."""
        served = call.model in self._endpoints.models
        if not self._headers.declines(answer):
            if not served and self._headers.status(answer) in _SUCCESS:
                self._endpoints.serves(call.model)
            return Outcome.OK
        blamed = served and call.operation not in _QUESTIONS
        return Outcome.FAILED if blamed else Outcome.UNTOLD

    def _failed(self, error: GatewayError, seconds: float, call: Call) -> Outcome:
        """What ``error``, after so many seconds, says of the endpoint. One that was given less time
        than the operator gives cannot be blamed for needing more, nor any for what this machine
        lacks."""
        if error.kind is Kind.CONNECT:
            return Outcome.UNREACHED if error.origin is Origin.BACKEND else Outcome.UNTOLD
        if error.kind is Kind.BACKEND_GARBAGE:
            return Outcome.BROKEN
        given = self.allowed(call)
        if call.retry.per_try is not None:
            given = min(given, call.retry.per_try)
        late = error.kind is Kind.TIMEOUT and seconds >= given - ROUNDING
        return Outcome.FAILED if late else Outcome.UNTOLD

    def _return(self, answer: Resp, call: Call) -> None:
        """Note those of the headers of ``answer`` that go back."""
        if headers := self._headers.read(answer):
            call.returned.update(self._returned.select(headers))

    def _away(self, error: GatewayError, sequence: SequenceName, tries: Tries) -> GatewayError:
        """``error`` telling which endpoint is away, by its place in the configuration."""
        place = self._endpoints.place(tries.asked[-1])
        return GatewayError(
            error.kind,
            f"{error.public} ({place}, which alone has sequence "
            f"{repr(sequence.id)[:_SHOWN]} of model '{sequence.model}')",
            origin=error.origin,
            detail=error.detail,
            retry_after=error.retry_after,
            limit=error.limit,
        )


def late(backend: str) -> GatewayError:
    """There is no time left to ask ``backend``."""
    return GatewayError(Kind.TIMEOUT, f"backend '{backend}': the deadline has passed")
