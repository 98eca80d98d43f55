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
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from infergate.backends.attempts import Attempts, ChooseEndpoint
from infergate.backends.base import add_backend_name
from infergate.backends.endpoints import AttemptOutcome, EndpointHandle, Endpoints
from infergate.backends.header_filter import HeaderFilter
from infergate.backends.hedging import run_hedged
from infergate.backends.message_access import MessageAccess
from infergate.backends.request_queue import RequestQueue
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import OPERATION_NAMES, InferRequest
from infergate.core.request_context import CLOCK_TOLERANCE, RequestContext
from infergate.core.retry_policy import HedgePolicy
from infergate.core.sequences import SequenceKey
from infergate.routing.budget import RetryBudget
from infergate.routing.latency import LatencyQuantile
from infergate.transport.base import StreamingUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_SUCCESS_STATUSES: Final = (200, 0)
_STATUS_OPERATIONS: Final = frozenset(OPERATION_NAMES.values()) - {OPERATION_NAMES[InferRequest]}
"""Operations on a model that a healthy server may answer with 503."""
_MAX_SHOWN_CHARACTERS: Final = 40
"""Characters of a sequence's ID in an error text."""


@dataclass(frozen=True)
class SenderSettings:
    """How the requests to a backend are sent. ``timeout``, in seconds, applies to routes without
    their own."""

    backend: str
    timeout: float
    request_filter: HeaderFilter
    response_filter: HeaderFilter
    hash_key: Callable[[RequestContext], str] | None = None
    """Returns the key of requests that belong on the same endpoint; None disables hashing."""


@dataclass(frozen=True)
class SenderState:
    """What the requests to a backend share. Without ``queue``, inferences are not limited."""

    endpoints: Endpoints
    retry_budget: RetryBudget
    queue: RequestQueue | None
    counters: BackendCounters


class RequestSender(Generic[Req, Resp]):
    """Sends messages over ``upstream``."""

    def __init__(
        self,
        settings: SenderSettings,
        state: SenderState,
        upstream: Upstream[Req, Resp],
        access: MessageAccess[Req, Resp],
    ) -> None:
        self._backend: Final = settings.backend
        self._endpoints: Final = state.endpoints
        self._upstream: Final = upstream
        self._access: Final = access
        self._timeout: Final = settings.timeout
        self._request_filter: Final = settings.request_filter
        self._response_filter: Final = settings.response_filter
        self._retry_budget: Final = state.retry_budget
        self._queue: Final = state.queue
        self._counters: Final = state.counters
        self._hash_key: Final = settings.hash_key
        self._latencies: Final[dict[str, LatencyQuantile]] = {}
        """By route, for routes that hedge after a percentile."""

    def with_upstream(self, upstream: Upstream[Req, Resp]) -> RequestSender[Req, Resp]:
        """Return a copy that uses ``upstream`` and shares endpoints, queue and counters."""
        copied = copy.copy(self)
        vars(copied)["_upstream"] = upstream
        return copied

    def timeout_for(self, context: RequestContext) -> float:
        """Return the route's timeout, else the backend's."""
        timeout = context.policy.timeout
        return self._timeout if timeout is None else timeout

    def prepare_request(self, wire: Req, context: RequestContext) -> None:
        """Add the client headers that are forwarded to ``wire``, and charge the response to the
        client's request."""
        self._access.set_memory_account(wire, context.memory)
        if forwarded := self._request_filter.select(context.headers):
            self._access.add_request_headers(wire, forwarded)

    def exchange(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None = None
    ) -> Awaitable[Resp]:
        """Send ``wire`` to an endpoint (the owner of ``sequence``, if given) and return its
        response, whatever its status."""
        if sequence is None and self._hash_key is None and not context.policy.retry.is_idempotent:
            return self._exchange_once(wire, context)
        return self._exchange_with_retries(wire, context, sequence)

    async def _exchange_once(self, wire: Req, context: RequestContext) -> Resp:
        """Make the first attempt without the state that retries need, the fast path of almost every
        exchange."""
        started = time.monotonic()
        context.shorten_deadline(started + self.timeout_for(context))
        assert context.deadline is not None
        seconds = context.deadline - started
        if seconds <= 0:
            raise deadline_error(self._backend)
        self.prepare_request(wire, context)
        handle, budget, outcome = (
            self._endpoints.choose(),
            self._retry_budget,
            AttemptOutcome.UNKNOWN,
        )
        budget.active_requests += 1
        try:
            response = await self._upstream.exchange(wire, handle.endpoint, seconds)
            outcome = self._response_outcome(response, context)
        except GatewayError as error:
            outcome = self._error_outcome(error, time.monotonic() - started, context)
            if error.kind is not Kind.CONNECT:
                raise add_backend_name(error, self._backend) from error
            attempts = self._make_attempts(context, None)
            attempts.begin_after(handle, add_backend_name(error, self._backend))
        else:
            self._collect_headers(response, context)
            return response
        finally:
            handle.finish_attempt(outcome)
            budget.active_requests -= 1
            context.record.backend_seconds += time.monotonic() - started
        return await self._measure(wire, attempts)

    async def _exchange_with_retries(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None
    ) -> Resp:
        context.shorten_deadline(time.monotonic() + self.timeout_for(context))
        self.prepare_request(wire, context)
        attempts = self._make_attempts(context, sequence)
        try:
            return await self._measure(wire, attempts)
        except GatewayError as error:
            if sequence is None or error.kind is not Kind.CONNECT:
                raise
            raise self._sequence_error(error, sequence, attempts) from error

    async def _measure(self, wire: Req, attempts: Attempts) -> Resp:
        context, started = attempts.context, time.monotonic()
        try:
            response = await self._run_attempts(wire, attempts)
        finally:
            context.record.backend_seconds += time.monotonic() - started
        self._collect_headers(response, context)
        return response

    def _make_attempts(self, context: RequestContext, sequence: SequenceKey | None) -> Attempts:
        if sequence is not None:
            return self._attempts_on(context, lambda: self._endpoints.sequence_owner(sequence))
        choose: ChooseEndpoint = self._endpoints.choose
        if self._hash_key is not None:
            choose = functools.partial(self._endpoints.choose, key=self._hash_key(context))
        return Attempts(
            context,
            choose,
            self._retry_budget,
            self._counters,
            may_resend=context.policy.retry.is_idempotent,
        )

    def _attempts_on(
        self, context: RequestContext, choose: Callable[[], EndpointHandle]
    ) -> Attempts:
        return Attempts(
            context, lambda _: choose(), self._retry_budget, self._counters, may_resend=False
        )

    def infer(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None = None
    ) -> Awaitable[Resp]:
        """Send an inference, which, unlike ``exchange``, respects the concurrency limit and the
        route's hedging."""
        if self._queue is None and context.policy.retry.hedge is None:
            return self.exchange(wire, context, sequence)
        return self._infer_queued(wire, context, sequence)

    async def _infer_queued(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None
    ) -> Resp:
        started = time.monotonic()
        context.shorten_deadline(started + self.timeout_for(context))
        queue = self._queue
        if queue is not None:
            try:
                await queue.enter(context)
            finally:
                context.record.backend_seconds += time.monotonic() - started
        try:
            if sequence is None and context.policy.retry.hedge is not None:
                return await self._exchange_hedged(wire, context, context.policy.retry.hedge)
            return await self.exchange(wire, context, sequence)
        finally:
            if queue is not None:
                queue.leave()

    async def _exchange_hedged(
        self, wire: Req, context: RequestContext, hedge: HedgePolicy
    ) -> Resp:
        """Run ``exchange`` with a hedge."""
        started = time.monotonic()
        self.prepare_request(wire, context)
        latencies, delay = None, hedge.after_seconds
        if delay is None:
            route = context.record.route
            latencies = self._latencies.get(route)
            if latencies is None:
                latencies = self._latencies[route] = LatencyQuantile(hedge.percentile)
            delay = latencies.percentile()
        attempts = self._make_attempts(context, None)
        first = self._run_attempts(wire, attempts)
        try:
            if delay is None:
                response = await first
            else:
                response, hedge_won = await run_hedged(
                    first, lambda: self._start_hedge(wire, attempts), delay, self._can_serve
                )
                self._counters.record_hedge(hedge_won)
        finally:
            duration = time.monotonic() - started
            context.record.backend_seconds += duration
        if latencies is not None and self._can_serve(response):
            latencies.add(duration)
        self._collect_headers(response, context)
        return response

    def _start_hedge(self, wire: Req, attempts: Attempts) -> Coroutine[Any, Any, Resp] | None:
        """Start a hedge on another endpoint, or return None if there is none or the concurrency
        limit or the retry budget is exhausted."""
        queue = self._queue
        if queue is not None and not queue.try_enter():
            return None
        handle = attempts.begin_hedge()
        if handle is not None:
            return self._run_hedge(wire, attempts, handle)
        if queue is not None:
            queue.leave()
        return None

    async def _run_hedge(self, wire: Req, attempts: Attempts, handle: EndpointHandle) -> Resp:
        try:
            return await self._attempt(wire, attempts, handle)
        finally:
            self._retry_budget.release()
            if self._queue is not None:
                self._queue.leave()

    async def exchange_with(
        self, handle: EndpointHandle, wire: Req, context: RequestContext
    ) -> Resp:
        """Send ``wire``, already prepared by ``prepare_request``, to one endpoint before the call's
        deadline."""
        return await self._run_attempts(wire, self._attempts_on(context, handle.begin_attempt))

    async def _run_attempts(self, wire: Req, attempts: Attempts) -> Resp:
        """Run attempts until one gives a response or no retry is left."""
        context = attempts.context
        assert context.deadline is not None
        if context.deadline <= time.monotonic():
            raise deadline_error(self._backend)
        declined: Resp | None = None
        handle = None if attempts.tried else attempts.begin()
        try:
            if handle is None:
                handle = await attempts.next_endpoint()
            while handle is not None:
                declined = None
                # No local variable may hold the error: its traceback refers to these frames, and
                # the cycle would keep the message until the next garbage collection.
                try:
                    response = await self._attempt(wire, attempts, handle)
                    if not attempts.may_resend or self._can_serve(response):
                        return response
                    declined = response
                except GatewayError as error:
                    attempts.record_error(add_backend_name(error, self._backend))
                handle = await attempts.next_endpoint()
        finally:
            attempts.end()
        if declined is not None:
            return declined
        raise attempts.take_error()

    async def _attempt(self, wire: Req, attempts: Attempts, handle: EndpointHandle) -> Resp:
        context = attempts.context
        started = time.monotonic()
        assert context.deadline is not None
        seconds = context.deadline - started
        if attempts.may_resend and context.policy.retry.per_try_timeout is not None:
            seconds = min(seconds, context.policy.retry.per_try_timeout)
        outcome = AttemptOutcome.UNKNOWN
        try:
            response = await self._upstream.exchange(wire, handle.endpoint, seconds)
            outcome = self._response_outcome(response, context)
        except GatewayError as error:
            outcome = self._error_outcome(error, time.monotonic() - started, context)
            raise
        finally:
            handle.finish_attempt(outcome)
        return response

    async def stream(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None
    ) -> AsyncGenerator[Resp, None]:
        """Send ``wire``, within the concurrency limit, and yield the messages of the response on
        demand. The upstream must support streams."""
        queue = self._queue
        if queue is not None:
            context.shorten_deadline(time.monotonic() + self.timeout_for(context))
            await queue.enter(context)
        try:
            async with aclosing(self._stream_with_retries(wire, context, sequence)) as messages:
                async for message in messages:
                    yield message
        finally:
            if queue is not None:
                queue.leave()

    async def _stream_with_retries(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None
    ) -> AsyncGenerator[Resp, None]:
        upstream = self._upstream
        assert isinstance(upstream, StreamingUpstream)
        self.prepare_request(wire, context)
        attempts = self._make_attempts(context, sequence)
        handle: EndpointHandle | None = attempts.begin()
        try:
            while handle is not None:
                declined: Resp | None = None
                message_timeout = (
                    context.policy.retry.per_try_timeout if attempts.may_resend else None
                )
                started = time.monotonic()
                remaining = (
                    None if context.stream_deadline is None else context.stream_deadline - started
                )
                has_message = False
                outcome = AttemptOutcome.UNKNOWN
                try:
                    async with aclosing(
                        upstream.stream(wire, handle.endpoint, remaining)
                    ) as messages:
                        while (
                            message := await self._next_message(messages, context, message_timeout)
                        ) is not None:
                            outcome = self._response_outcome(message, context)
                            if (
                                outcome is not AttemptOutcome.OK
                                and attempts.may_resend
                                and not has_message
                            ):
                                declined = message
                                break
                            has_message, message_timeout = True, None
                            self._collect_headers(message, context)
                            yield message
                            started = time.monotonic()
                        else:
                            return
                except GatewayError as error:
                    outcome = self._error_outcome(error, time.monotonic() - started, context)
                    attempts.record_error(add_backend_name(error, self._backend))
                    if has_message:
                        raise attempts.take_error() from error
                finally:
                    handle.finish_attempt(outcome)
                handle = await attempts.next_endpoint()
        finally:
            attempts.end()
        if declined is not None:
            self._collect_headers(declined, context)
            yield declined
            return
        last = attempts.take_error()
        try:
            if sequence is None or last.kind is not Kind.CONNECT:
                raise last
            raise self._sequence_error(last, sequence, attempts)
        finally:
            del last

    async def _next_message(
        self, messages: AsyncGenerator[Resp, None], context: RequestContext, max_wait: float | None
    ) -> Resp | None:
        """Return the next message, or None after the last. ``max_wait`` shortens the wait, in
        seconds."""
        started = time.monotonic()
        context.shorten_deadline(started + self.timeout_for(context))
        assert context.deadline is not None
        seconds = context.deadline - started
        try:
            async with asyncio.timeout(seconds if max_wait is None else min(seconds, max_wait)):
                return await anext(messages, None)
        except TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT, "the backend did not answer in time", origin=Origin.BACKEND
            ) from None
        finally:
            context.record.backend_seconds += time.monotonic() - started

    def _can_serve(self, response: Resp) -> bool:
        """Return whether the endpoint that sent ``response`` can serve."""
        return not self._access.is_unavailable(response)

    def _response_outcome(self, response: Resp, context: RequestContext) -> AttemptOutcome:
        """Return what ``response`` implies about its endpoint. Being unavailable for a model counts
        as a failure only if some endpoint has served that model, because clients may ask for models
        that are not loaded, or whether they are."""
        model = context.record.model
        has_been_served = model in self._endpoints.served_models
        if not self._access.is_unavailable(response):
            if not has_been_served and self._access.response_status(response) in _SUCCESS_STATUSES:
                self._endpoints.record_served_model(model)
            return AttemptOutcome.OK
        counts_as_failure = has_been_served and context.record.operation not in _STATUS_OPERATIONS
        return AttemptOutcome.FAILED if counts_as_failure else AttemptOutcome.UNKNOWN

    def _error_outcome(
        self, error: GatewayError, seconds: float, context: RequestContext
    ) -> AttemptOutcome:
        """Return what ``error``, after ``seconds``, implies about the endpoint. A timeout counts as
        a failure only if the endpoint had the full configured time; a shortage of local resources
        never does."""
        if error.kind is Kind.CONNECT:
            return (
                AttemptOutcome.NOT_CONNECTED
                if error.origin is Origin.BACKEND
                else AttemptOutcome.UNKNOWN
            )
        if error.kind is Kind.BACKEND_GARBAGE:
            return AttemptOutcome.BROKEN
        time_allowed = self.timeout_for(context)
        if context.policy.retry.per_try_timeout is not None:
            time_allowed = min(time_allowed, context.policy.retry.per_try_timeout)
        used_full_time = error.kind is Kind.TIMEOUT and seconds >= time_allowed - CLOCK_TOLERANCE
        return AttemptOutcome.FAILED if used_full_time else AttemptOutcome.UNKNOWN

    def _collect_headers(self, response: Resp, context: RequestContext) -> None:
        """Collect the response headers that are returned to the client."""
        if headers := self._access.response_headers(response):
            context.response_headers.update(self._response_filter.select(headers))

    def _sequence_error(
        self, error: GatewayError, sequence: SequenceKey, attempts: Attempts
    ) -> GatewayError:
        """Return ``error`` with the position of the sequence's endpoint in the configuration."""
        position = self._endpoints.describe_position(attempts.tried[-1])
        return error.reworded(
            f"{error.public} ({position}, which holds the state of sequence "
            f"{repr(sequence.id)[:_MAX_SHOWN_CHARACTERS]} of model '{sequence.model}')"
        )


def deadline_error(backend: str) -> GatewayError:
    """Return the error for a deadline that has passed before ``backend`` was contacted."""
    return GatewayError(Kind.TIMEOUT, f"backend '{backend}': the deadline has passed")
