"""Sends a message to an endpoint of a backend and returns the response.

*Rule 1.* An exchange ends at the client's deadline or after the timeout of the route, whichever is
earlier. Without a route timeout, the backend's applies. Over gRPC, the remaining time is sent to
the server.
*Rule 2.* Failed requests are retried as the route configures (``attempts``, docs/decisions/0022):
by default only if nothing was sent, because a request that was sent may have been executed.
*Rule 3.* Each request for a stream of responses is a separate call. The client's deadline limits
the complete stream and, over gRPC, is sent to the server; the timeout limits the wait for each
message. A stream is not retried after its first message, and is never hedged.
*Rule 4.* All requests of a sequence go to the endpoint that holds the sequence's state. They are
never retried on another endpoint (docs/decisions/0013) and never sent twice.
*Rule 5.* The outcome of each attempt is reported to the endpoint.
*Rule 6.* If the backend has a concurrency limit, inferences wait in its queue. Other operations are
not limited."""

from __future__ import annotations

import asyncio
import copy
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from infergate.backends.attempts import (
    Attempts,
    BegunExchange,
    ChooseEndpoint,
    SenderState,
    StreamAttempt,
)
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.base import add_backend_name
from infergate.backends.endpoints import AttemptOutcome, EndpointHandle
from infergate.backends.header_filter import HeaderFilter
from infergate.backends.hedging import run_hedged
from infergate.backends.message_access import MessageAccess
from infergate.backends.request_preparation import RequestPreparation, deadline_error
from infergate.backends.request_queue import RequestQueue
from infergate.core.connect_time import take_connect_seconds
from infergate.core.errors import GatewayError, Kind, Origin, backend_failure
from infergate.core.messages import OPERATION_NAMES, InferRequest
from infergate.core.request_context import CLOCK_TOLERANCE, RequestContext
from infergate.core.route_policy import HedgePolicy
from infergate.core.sequences import SequenceKey
from infergate.routing.latency import LatencyQuantile
from infergate.transport.base import CallbackUpstream, StreamingUpstream, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")
T = TypeVar("T")

_SUCCESS_STATUSES: Final = (200, 0)
_STATUS_OPERATIONS: Final = frozenset(OPERATION_NAMES.values()) - {OPERATION_NAMES[InferRequest]}
"""Operations to which a healthy server may respond with 503."""
_MAX_SHOWN_CHARACTERS: Final = 40
"""Maximum length of a sequence ID in an error text, in characters."""


class RequestSender(Generic[Req, Resp]):
    """Sends messages over ``upstream``."""

    def __init__(
        self,
        settings: BackendSettings,
        state: SenderState,
        upstream: Upstream[Req, Resp],
        access: MessageAccess[Req, Resp],
    ) -> None:
        self.backend: Final = settings.name
        self.endpoints: Final = state.endpoints
        self._upstream: Final = upstream
        self.access: Final = access
        request_filter = HeaderFilter(
            settings.forward_headers, settings.max_header_bytes, counts_hops=True
        )
        self.preparation: Final = RequestPreparation(
            settings.name, settings.timeout, request_filter, access.add_request_headers
        )
        self._response_filter: Final = HeaderFilter(settings.return_headers)
        self._state: Final = state
        self.retry_budget: Final = state.retry_budget
        self.queue: Final = state.queue
        self.begin: Final = upstream.begin if isinstance(upstream, CallbackUpstream) else None
        """A function that begins an exchange without a task; None if the upstream needs tasks."""
        self.hash_key: Final = settings.hash_key
        self.returns_headers: Final = self._response_filter.selects_any
        self._latencies: Final[dict[str, LatencyQuantile]] = {}
        """The recent latencies of each route whose hedge delay is a percentile of its latencies."""

    def with_upstream(self, upstream: Upstream[Req, Resp]) -> RequestSender[Req, Resp]:
        """Return a copy that uses ``upstream`` and shares endpoints, queue and counters."""
        copied = copy.copy(self)
        begin = upstream.begin if isinstance(upstream, CallbackUpstream) else None
        vars(copied).update(_upstream=upstream, begin=begin)
        return copied

    async def exchange(
        self,
        wire: Req,
        context: RequestContext,
        sequence: SequenceKey | None = None,
        hedge: HedgePolicy | None = None,
        begun: BegunExchange | None = None,
    ) -> Resp:
        """Send ``wire`` to an endpoint or, for a sequence, to the owner of ``sequence``. Return the
        response, which may have any status. Only idempotent routes have a ``hedge``. ``begun`` is
        the state of an exchange that began without a task."""
        attempts, budget = None, self.retry_budget
        if begun is None:
            started = time.monotonic()
            self.preparation.set_deadline(context, started)
            self.preparation.prepare(wire, context)
            budget.active_requests += 1
        else:
            started = begun.started_at
        try:
            if begun is not None or (
                sequence is None
                and self.hash_key is None
                and not context.policy.retry.is_idempotent
            ):
                # This is the common case, in which the first attempt needs no state for retries.
                handle = self.endpoints.choose() if begun is None else begun.handle
                try:
                    if begun is not None and begun.error is not None:
                        raise begun.error
                    response = await self._attempt(wire, context, handle)
                except GatewayError as error:
                    attempts = self._make_attempts(context, None)
                    attempts.tried.append(handle)
                    attempts.record_error(add_backend_name(error, self.backend))
                    begun = None  # the error's traceback refers to this frame
            else:
                attempts = self._make_attempts(context, sequence)
            if attempts is not None:
                response = await (
                    self._run_attempts(wire, attempts, self._attempt)
                    if hedge is None
                    else self._run_hedged(wire, attempts, hedge)
                )
        finally:
            budget.active_requests -= 1
            record = context.record
            record.backend_started_at = record.backend_started_at or started
            record.backend_seconds += time.monotonic() - started
            if attempts is not None:
                attempts.release_budget()
        if self.returns_headers:
            self.collect_headers(response, context)
        return response

    def _make_attempts(self, context: RequestContext, sequence: SequenceKey | None) -> Attempts:
        choose: ChooseEndpoint = self.endpoints.choose
        if sequence is not None:
            choose = functools.partial(self._choose_owner, sequence)
        elif self.hash_key is not None:
            choose = functools.partial(self.endpoints.choose, key=self.hash_key(context))
        retry = context.policy.retry
        if sequence is not None or not retry.is_idempotent:
            return Attempts(context, choose, self._state, sequence)
        return Attempts(
            context, choose, self._state, may_resend=True, per_try_timeout=retry.per_try_timeout
        )

    def _choose_owner(self, sequence: SequenceKey, _tried: object) -> EndpointHandle:
        return self.endpoints.sequence_owner(sequence)

    def infer(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None = None
    ) -> Awaitable[Resp]:
        """Send ``wire`` like ``exchange``, within the concurrency limit and with the route's
        hedging."""
        hedge = context.policy.retry.hedge if sequence is None else None
        if self.queue is None:
            return self.exchange(wire, context, sequence, hedge)
        return self._exchange_queued(self.queue, wire, context, sequence, hedge)

    async def _exchange_queued(
        self,
        queue: RequestQueue,
        wire: Req,
        context: RequestContext,
        sequence: SequenceKey | None,
        hedge: HedgePolicy | None,
    ) -> Resp:
        started = time.monotonic()
        context.shorten_deadline(started + self.preparation.timeout_for(context))
        try:
            await queue.enter(context)
        finally:
            record, waited = context.record, time.monotonic() - started
            record.backend_started_at = record.backend_started_at or started
            record.backend_seconds += waited
            record.queue_seconds += waited
        try:
            return await self.exchange(wire, context, sequence, hedge)
        finally:
            queue.leave()

    async def _run_hedged(self, wire: Req, attempts: Attempts, hedge: HedgePolicy) -> Resp:
        started = time.monotonic()
        latencies, delay = None, hedge.after_seconds
        if delay is None:
            route = attempts.context.record.route
            latencies = self._latencies.get(route)
            if latencies is None:
                latencies = self._latencies[route] = LatencyQuantile(hedge.percentile)
            delay = latencies.percentile()
        first = self._run_attempts(wire, attempts, self._attempt)
        if delay is None:
            response = await first
        else:
            response, hedge_won = await run_hedged(
                first, lambda: self._start_hedge(wire, attempts), delay, self._can_serve
            )
            self._state.counters.record_hedge(hedge_won)
        if latencies is not None and self._can_serve(response):
            latencies.add(time.monotonic() - started)
        return response

    def _start_hedge(self, wire: Req, attempts: Attempts) -> Coroutine[Any, Any, Resp] | None:
        """Start a hedge on another endpoint. Return None if there is no other endpoint, or if the
        concurrency limit or the retry budget is exhausted."""
        queue = self.queue
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
            return await self._attempt(wire, attempts.context, handle, attempts.per_try_timeout)
        finally:
            self.retry_budget.release()
            if self.queue is not None:
                self.queue.leave()

    async def exchange_with(
        self, handle: EndpointHandle, wire: Req, context: RequestContext
    ) -> Resp:
        """Send ``wire``, which ``preparation`` has prepared, to ``handle`` before the deadline of
        ``context``."""
        assert context.deadline is not None
        if context.deadline <= time.monotonic():
            raise deadline_error(self.backend)
        attempts = Attempts(context, lambda _: handle.begin_attempt(), self._state)
        self.retry_budget.active_requests += 1
        try:
            return await self._run_attempts(wire, attempts, self._attempt)
        finally:
            self.retry_budget.active_requests -= 1
            attempts.release_budget()

    async def _run_attempts(
        self,
        wire: Req,
        attempts: Attempts,
        attempt: Callable[[Req, RequestContext, EndpointHandle, float | None], Awaitable[T]],
    ) -> T:
        context, declined = attempts.context, None
        while (handle := await attempts.next_endpoint()) is not None:
            # No local variable may hold the error. Its traceback refers to these frames, and the
            # reference cycle would keep the message until the next garbage collection.
            try:
                response = await attempt(wire, context, handle, attempts.per_try_timeout)
                if not attempts.may_resend or self._can_serve(response):
                    return response
                declined = response
            except GatewayError as error:
                declined = None
                attempts.record_error(add_backend_name(error, self.backend))
        if declined is not None:
            return declined
        raise self._take_error(attempts)

    async def _attempt(
        self,
        wire: Req,
        context: RequestContext,
        handle: EndpointHandle,
        max_seconds: float | None = None,
    ) -> Resp:
        started = time.monotonic()
        assert context.deadline is not None
        seconds = context.deadline - started
        if max_seconds is not None and max_seconds < seconds:
            seconds = max_seconds
        outcome = AttemptOutcome.UNKNOWN
        try:
            response = await self._upstream.exchange(wire, handle.endpoint, seconds)
            outcome = self.response_outcome(response, context)
        except GatewayError as error:
            outcome = self.error_outcome(error, time.monotonic() - started, context)
            raise
        finally:
            handle.finish_attempt(outcome)
            context.record.connect_seconds += take_connect_seconds()
        return response

    async def stream(
        self, wire: Req, context: RequestContext, sequence: SequenceKey | None
    ) -> AsyncGenerator[Resp, None]:
        """Send ``wire`` within the concurrency limit, and yield the messages of the response on
        demand. The upstream must support streams."""
        queue = self.queue
        if queue is not None:
            context.shorten_deadline(time.monotonic() + self.preparation.timeout_for(context))
            await queue.enter(context)
        try:
            self.preparation.prepare(wire, context)
            attempts = self._make_attempts(context, sequence)
            self.retry_budget.active_requests += 1
            try:
                open_stream = functools.partial(self._open_stream, attempts)
                message = await self._run_attempts(wire, attempts, open_stream)
                while message is not None:
                    self.collect_headers(message, context)
                    yield message
                    message = await self._following_message(attempts)
            finally:
                self.retry_budget.active_requests -= 1
                if attempts.stream is not None:
                    await attempts.stream.close()
                attempts.release_budget()
        finally:
            if queue is not None:
                queue.leave()

    async def _open_stream(
        self,
        attempts: Attempts,
        wire: Req,
        context: RequestContext,
        handle: EndpointHandle,
        max_wait: float | None,
    ) -> Resp | None:
        """Start a stream and return its first message, or None if the stream is empty. The stream
        stays open unless this attempt fails."""
        upstream = self._upstream
        assert isinstance(upstream, StreamingUpstream)
        deadline = context.stream_deadline
        seconds = None if deadline is None else deadline - time.monotonic()
        stream = StreamAttempt(handle, upstream.stream(wire, handle.endpoint, seconds))
        try:
            message = await self._next_message(stream, context, max_wait)
            if not attempts.may_resend or self._can_serve(message):
                attempts.stream = stream
        finally:
            if attempts.stream is None:
                await stream.close()
        return message

    async def _following_message(self, attempts: Attempts) -> Resp | None:
        if attempts.stream is None:  # the first message reports an unavailable endpoint
            return None
        try:
            return await self._next_message(attempts.stream, attempts.context)
        except GatewayError as error:
            raise add_backend_name(error, self.backend) from error

    async def _next_message(
        self, stream: StreamAttempt[Resp], context: RequestContext, max_wait: float | None = None
    ) -> Resp | None:
        """Return the next message, or None after the last message. ``max_wait`` is in seconds."""
        started = time.monotonic()
        context.shorten_deadline(started + self.preparation.timeout_for(context))
        assert context.deadline is not None
        seconds = context.deadline - started
        try:
            try:
                async with asyncio.timeout(seconds if max_wait is None else min(seconds, max_wait)):
                    message = await anext(stream.messages, None)
            except TimeoutError:
                raise backend_failure(Kind.TIMEOUT, "the backend did not respond in time") from None
        except GatewayError as error:
            stream.outcome = self.error_outcome(error, time.monotonic() - started, context)
            raise
        finally:
            context.record.backend_seconds += time.monotonic() - started
        if message is not None:
            stream.outcome = self.response_outcome(message, context)
        return message

    def _can_serve(self, response: Any) -> bool:
        access = self.access
        return response is None or (
            access.response_status(response) not in access.unavailable_statuses
        )

    def response_outcome(self, response: Resp, context: RequestContext) -> AttemptOutcome:
        """Return the outcome of the attempt that returned ``response``. A response that reports an
        unavailable model is a failure only if the request is an inference and an endpoint has
        served the model before. Otherwise, the model may never have been loaded, or the client may
        only be asking whether the model is ready."""
        model = context.record.model
        is_known = model in self.endpoints.known_models
        status = self.access.response_status(response)
        if status not in self.access.unavailable_statuses:
            if not is_known and status in _SUCCESS_STATUSES:
                self.endpoints.record_known_model(model)
            return AttemptOutcome.OK
        counts_as_failure = is_known and context.record.operation not in _STATUS_OPERATIONS
        return AttemptOutcome.FAILED if counts_as_failure else AttemptOutcome.UNKNOWN

    def error_outcome(
        self, error: GatewayError, seconds: float, context: RequestContext
    ) -> AttemptOutcome:
        """Return the outcome of an attempt that raised ``error`` after ``seconds``. A timeout is a
        failure of the endpoint only if the endpoint had the full configured time. A shortage of
        local resources is never a failure of the endpoint."""
        if error.kind is Kind.CONNECT:
            return (
                AttemptOutcome.NOT_CONNECTED
                if error.origin is Origin.BACKEND
                else AttemptOutcome.UNKNOWN
            )
        if error.kind is Kind.BACKEND_GARBAGE:
            return AttemptOutcome.BROKEN
        time_allowed = self.preparation.timeout_for(context)
        if context.policy.retry.per_try_timeout is not None:
            time_allowed = min(time_allowed, context.policy.retry.per_try_timeout)
        used_full_time = error.kind is Kind.TIMEOUT and seconds >= time_allowed - CLOCK_TOLERANCE
        return AttemptOutcome.FAILED if used_full_time else AttemptOutcome.UNKNOWN

    def collect_headers(self, response: Resp, context: RequestContext) -> None:
        headers = self.access.response_headers(response)
        if headers and (returned := self._response_filter.select(headers)):
            context.response_headers = {**context.response_headers, **returned}

    def _take_error(self, attempts: Attempts) -> GatewayError:
        """Return the error of the latest attempt. If the owner of a sequence could not be reached,
        add the owner's position in the configuration."""
        error, sequence = attempts.take_error(), attempts.sequence
        try:
            if sequence is None or error.kind is not Kind.CONNECT:
                return error
            position = self.endpoints.describe_position(attempts.tried[-1])
            return error.reworded(
                f"{error.public} ({position}, which holds the state of sequence "
                f"{repr(sequence.id)[:_MAX_SHOWN_CHARACTERS]} of model '{sequence.model}')"
            )
        finally:
            del error  # the error's traceback will refer to this frame
