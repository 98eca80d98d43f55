"""Sends a message to an endpoint of a backend and returns its response.

*Rule 1.* The shorter of the client's deadline and the timeout (the route's, else the backend's)
bounds every exchange, and is propagated upstream.
*Rule 2.* Failed requests are retried as the route configures (``attempts``, docs/decisions/0022):
by default only if nothing was sent, because anything else may have been executed.
*Rule 3.* A stream is a separate call for each request. Only the client's deadline applies to the
whole stream and is propagated; the timeout bounds the wait for each message. Nothing is retried
after the first message, and streams are never hedged.
*Rule 4.* All requests of a sequence go to the one endpoint that holds its state. They are never
retried on another endpoint (docs/decisions/0013), nor sent twice.
*Rule 5.* The outcome of each attempt is reported to the endpoint.
*Rule 6.* If the backend has a concurrency limit, inferences wait in its queue; other operations do
not.
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
"""Operations on a model that a healthy server may answer with 503."""
_SHOWN: Final = 40
"""Characters of a sequence's ID in an error text."""


class Sending(Generic[Req, Resp]):
    """Sends messages to ``endpoints`` over ``upstream``; ``timeout``, in seconds, applies to routes
    without their own."""

    def __init__(  # noqa: PLR0913 - dependency injection
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
        """Without ``queue``, inferences are not limited. ``hash_key`` returns the key of requests
        that belong on the same endpoint; None disables hashing."""
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
        """By route, for routes that hedge after a percentile."""

    def over(self, upstream: Upstream[Req, Resp]) -> Sending[Req, Resp]:
        """Return a copy that uses ``upstream`` and shares endpoints, queue and counters."""
        copied = copy.copy(self)
        vars(copied)["_upstream"] = upstream
        return copied

    def allowed(self, call: Call) -> float:
        """Return the route's timeout, else the backend's."""
        return self._timeout if call.timeout is None else call.timeout

    def forward(self, wire: Req, call: Call) -> None:
        """Add the client headers that are forwarded to ``wire``, and charge the response to the
        client's request."""
        self._headers.charge(wire, call.memory)
        if forwarded := self._forwarded.select(call.headers):
            self._headers.add(wire, forwarded)

    def exchange(
        self, wire: Req, call: Call, sequence: SequenceName | None = None
    ) -> Awaitable[Resp]:
        """Send ``wire`` to an endpoint (the owner of ``sequence``, if given) and return its
        response, whatever its status."""
        if sequence is None and self._key is None and not call.retry.idempotent:
            return self._plainly(wire, call)
        return self._exchange(wire, call, sequence)

    async def _plainly(self, wire: Req, call: Call) -> Resp:
        """Make the first attempt without the state that retries need, the fast path of almost every
        exchange."""
        started = time.monotonic()
        call.tighten(started + self.allowed(call))
        assert call.deadline is not None
        seconds = call.deadline - started
        if seconds <= 0:
            raise late(self._backend)
        self.forward(wire, call)
        handle, budget, outcome = self._endpoints.choose(), self._budget, Outcome.UNTOLD
        budget.requests += 1
        try:
            response = await self._upstream.exchange(wire, handle.endpoint, seconds)
            outcome = self._outcome(response, call)
        except GatewayError as error:
            outcome = self._failed(error, time.monotonic() - started, call)
            if error.kind is not Kind.CONNECT:
                raise named(error, self._backend) from error
            attempts = self._tries(call, None)
            attempts.begun(handle, named(error, self._backend))
        else:
            self._return(response, call)
            return response
        finally:
            handle.finished(outcome)
            budget.requests -= 1
            call.backend_seconds += time.monotonic() - started
        return await self._timed(wire, attempts)

    async def _exchange(self, wire: Req, call: Call, sequence: SequenceName | None) -> Resp:
        call.tighten(time.monotonic() + self.allowed(call))
        self.forward(wire, call)
        attempts = self._tries(call, sequence)
        try:
            return await self._timed(wire, attempts)
        except GatewayError as error:
            if sequence is None or error.kind is not Kind.CONNECT:
                raise
            raise self._away(error, sequence, attempts) from error

    async def _timed(self, wire: Req, tries: Tries) -> Resp:
        call, started = tries.call, time.monotonic()
        try:
            response = await self._tried(wire, tries)
        finally:
            call.backend_seconds += time.monotonic() - started
        self._return(response, call)
        return response

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
        """Send an inference, which, unlike ``exchange``, respects the concurrency limit and the
        route's hedging."""
        if self._queue is None and call.retry.hedge is None:
            return self.exchange(wire, call, sequence)
        return self._infer(wire, call, sequence)

    async def _infer(self, wire: Req, call: Call, sequence: SequenceName | None) -> Resp:
        started = time.monotonic()
        call.tighten(started + self.allowed(call))
        queue = self._queue
        if queue is not None:
            try:
                await queue.enter(call)
            finally:
                call.backend_seconds += time.monotonic() - started
        try:
            if sequence is None and call.retry.hedge is not None:
                return await self._hedged(wire, call, call.retry.hedge)
            return await self.exchange(wire, call, sequence)
        finally:
            if queue is not None:
                queue.leave()

    async def _hedged(self, wire: Req, call: Call, hedge: Hedge) -> Resp:
        """Run ``exchange`` with a hedge."""
        started = time.monotonic()
        self.forward(wire, call)
        latencies, delay = None, hedge.after
        if delay is None:
            latencies = self._latencies.get(call.route)
            if latencies is None:
                latencies = self._latencies[call.route] = Latencies(hedge.percentile)
            delay = latencies.percentile()
        attempts = self._tries(call, None)
        first = self._tried(wire, attempts)
        try:
            if delay is None:
                response = await first
            else:
                response, hedge_won = await hedged(
                    first, lambda: self._hedge(wire, attempts), delay, self._serves
                )
                self._tally.hedged(hedge_won)
        finally:
            duration = time.monotonic() - started
            call.backend_seconds += duration
        if latencies is not None and self._serves(response):
            latencies.add(duration)
        self._return(response, call)
        return response

    def _hedge(self, wire: Req, tries: Tries) -> Coroutine[Any, Any, Resp] | None:
        """Start a hedge on another endpoint, or return None if there is none or the concurrency
        limit or the retry budget is exhausted."""
        queue = self._queue
        if queue is not None and not queue.enter_now():
            return None
        handle = tries.hedge()
        if handle is not None:
            return self._second(wire, tries, handle)
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
        """Send ``wire``, already prepared by ``prepare_request``, to one endpoint before the call's
        deadline."""
        return await self._tried(wire, self._only(call, lease.take))

    async def _tried(self, wire: Req, tries: Tries) -> Resp:
        """Run attempts until one gives a response or no retry is left."""
        call = tries.call
        assert call.deadline is not None
        if call.deadline <= time.monotonic():
            raise late(self._backend)
        declined: Resp | None = None
        handle = None if tries.asked else tries.first()
        try:
            if handle is None:
                handle = await tries.next()
            while handle is not None:
                declined = None
                # No local variable may hold the error: its traceback refers to these frames, and
                # the cycle would keep the message until the next garbage collection.
                try:
                    response = await self._try(wire, tries, handle)
                    if not tries.resend or self._serves(response):
                        return response
                    declined = response
                except GatewayError as error:
                    tries.refused(named(error, self._backend))
                handle = await tries.next()
        finally:
            tries.over()
        if declined is not None:
            return declined
        raise tries.error()

    async def _try(self, wire: Req, tries: Tries, lease: Lease) -> Resp:
        call = tries.call
        started = time.monotonic()
        assert call.deadline is not None
        seconds = call.deadline - started
        if tries.resend and call.retry.per_try is not None:
            seconds = min(seconds, call.retry.per_try)
        outcome = Outcome.UNTOLD
        try:
            response = await self._upstream.exchange(wire, lease.endpoint, seconds)
            outcome = self._outcome(response, call)
        except GatewayError as error:
            outcome = self._failed(error, time.monotonic() - started, call)
            raise
        finally:
            lease.finished(outcome)
        return response

    async def stream(
        self, wire: Req, call: Call, sequence: SequenceName | None
    ) -> AsyncGenerator[Resp, None]:
        """Send ``wire``, within the concurrency limit, and yield the messages of the response on
        demand. The upstream must support streams."""
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
        attempts = self._tries(call, sequence)
        handle: Lease | None = attempts.first()
        try:
            while handle is not None:
                declined: Resp | None = None
                message_timeout = call.retry.per_try if attempts.resend else None
                started = time.monotonic()
                remaining = None if call.whole is None else call.whole - started
                has_message = False
                outcome = Outcome.UNTOLD
                try:
                    async with aclosing(
                        upstream.stream(wire, handle.endpoint, remaining)
                    ) as messages:
                        while (
                            message := await self._pull(messages, call, message_timeout)
                        ) is not None:
                            outcome = self._outcome(message, call)
                            if outcome is not Outcome.OK and attempts.resend and not has_message:
                                declined = message
                                break
                            has_message, message_timeout = True, None
                            self._return(message, call)
                            yield message
                            started = time.monotonic()
                        else:
                            return
                except GatewayError as error:
                    outcome = self._failed(error, time.monotonic() - started, call)
                    attempts.refused(named(error, self._backend))
                    if has_message:
                        raise attempts.error() from error
                finally:
                    handle.finished(outcome)
                handle = await attempts.next()
        finally:
            attempts.over()
        if declined is not None:
            self._return(declined, call)
            yield declined
            return
        last = attempts.error()
        try:
            if sequence is None or last.kind is not Kind.CONNECT:
                raise last
            raise self._away(last, sequence, attempts)
        finally:
            del last

    async def _pull(
        self, messages: AsyncGenerator[Resp, None], call: Call, patience: float | None
    ) -> Resp | None:
        """Return the next message, or None after the last. ``max_wait`` shortens the wait, in
        seconds."""
        started = time.monotonic()
        call.tighten(started + self.allowed(call))
        assert call.deadline is not None
        seconds = call.deadline - started
        try:
            async with asyncio.timeout(seconds if patience is None else min(seconds, patience)):
                return await anext(messages, None)
        except TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT, "the backend did not answer in time", origin=Origin.BACKEND
            ) from None
        finally:
            call.backend_seconds += time.monotonic() - started

    def _serves(self, answer: Resp) -> bool:
        """Return whether the endpoint that sent ``response`` can serve."""
        return not self._headers.declines(answer)

    def _outcome(self, answer: Resp, call: Call) -> Outcome:
        """Return what ``response`` implies about its endpoint. Being unavailable for a model counts
        as a failure only if some endpoint has served that model, because clients may ask for models
        that are not loaded, or whether they are."""
        has_been_served = call.model in self._endpoints.models
        if not self._headers.declines(answer):
            if not has_been_served and self._headers.status(answer) in _SUCCESS:
                self._endpoints.serves(call.model)
            return Outcome.OK
        counts_as_failure = has_been_served and call.operation not in _QUESTIONS
        return Outcome.FAILED if counts_as_failure else Outcome.UNTOLD

    def _failed(self, error: GatewayError, seconds: float, call: Call) -> Outcome:
        """Return what ``error``, after ``seconds``, implies about the endpoint. A timeout counts as
        a failure only if the endpoint had the full configured time; a shortage of local resources
        never does."""
        if error.kind is Kind.CONNECT:
            return Outcome.UNREACHED if error.origin is Origin.BACKEND else Outcome.UNTOLD
        if error.kind is Kind.BACKEND_GARBAGE:
            return Outcome.BROKEN
        time_allowed = self.allowed(call)
        if call.retry.per_try is not None:
            time_allowed = min(time_allowed, call.retry.per_try)
        used_full_time = error.kind is Kind.TIMEOUT and seconds >= time_allowed - ROUNDING
        return Outcome.FAILED if used_full_time else Outcome.UNTOLD

    def _return(self, answer: Resp, call: Call) -> None:
        """Collect the response headers that are returned to the client."""
        if headers := self._headers.read(answer):
            call.returned.update(self._returned.select(headers))

    def _away(self, error: GatewayError, sequence: SequenceName, tries: Tries) -> GatewayError:
        """Return ``error`` with the position of the sequence's endpoint in the configuration."""
        position = self._endpoints.place(tries.asked[-1])
        return GatewayError(
            error.kind,
            f"{error.public} ({position}, which holds the state of sequence "
            f"{repr(sequence.id)[:_SHOWN]} of model '{sequence.model}')",
            origin=error.origin,
            detail=error.detail,
            retry_after=error.retry_after,
            limit=error.limit,
        )


def late(backend: str) -> GatewayError:
    """Return the error for a deadline that has passed before ``backend`` was contacted."""
    return GatewayError(Kind.TIMEOUT, f"backend '{backend}': the deadline has passed")
