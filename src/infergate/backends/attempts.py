"""Decides whether, when and on which endpoint a failed attempt of a request is retried.

*Rule 1.* A request that was not sent is retried. An idempotent request is also retried if the
connection broke, the attempt timed out, or the endpoint reported that it is unavailable.
*Rule 2.* If nothing was sent, the next endpoint is tried immediately and without using the retry
budget, because this costs no more than choosing that endpoint first. Any other retry waits for its
backoff and uses the budget.
*Rule 3.* No further attempt is made after the route's maximum number of retries or after the
deadline, or if a backoff could not end before the deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from infergate.backends.endpoints import AttemptOutcome, EndpointHandle, Endpoints
from infergate.backends.request_queue import RequestQueue
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey
from infergate.routing.backoff import backoff
from infergate.routing.budget import RetryBudget

Resp = TypeVar("Resp")

NOT_SENT: Final = "not_sent"
DECLINED: Final = "declined"
_RESEND_REASONS: Final[Mapping[Kind, str]] = {
    Kind.BACKEND_GARBAGE: "broken",
    Kind.TIMEOUT: "timeout",
}

ChooseEndpoint = Callable[[list[EndpointHandle]], EndpointHandle]
"""Returns the best endpoint for the next attempt, if possible not one of the given endpoints."""


@dataclass(frozen=True)
class SenderState:
    """The endpoints, retry budget, queue and counters that all requests to a backend share. If
    ``queue`` is None, inferences are not limited."""

    endpoints: Endpoints
    retry_budget: RetryBudget
    queue: RequestQueue | None
    counters: BackendCounters


class BegunExchange(NamedTuple):
    """An exchange that a task must continue. Its first attempt, on ``handle``, failed with
    ``error``, or could not be made without a task (``error`` is None). The retry budget already
    counts the exchange as an active request."""

    started_at: float
    handle: EndpointHandle
    error: GatewayError | None


@dataclass(slots=True, eq=False)
class StreamAttempt(Generic[Resp]):
    """An attempt whose response is a stream of ``messages``."""

    _handle: EndpointHandle
    messages: AsyncGenerator[Resp, None]
    outcome: AttemptOutcome = AttemptOutcome.UNKNOWN
    """The outcome of the attempt so far."""

    async def close(self) -> None:
        """Close the stream and report its outcome."""
        try:
            await self.messages.aclose()
        finally:
            self._handle.finish_attempt(self.outcome)


@dataclass(slots=True, eq=False)
class Attempts:
    """The attempts of the request that ``context`` describes. If the request belongs to a sequence,
    ``sequence`` identifies the sequence. ``may_resend`` allows the request to be executed more than
    once; ``per_try_timeout`` then limits each attempt, in seconds. The creator must call
    ``release_budget`` at the end."""

    context: RequestContext
    _choose: ChooseEndpoint
    _state: SenderState
    sequence: SequenceKey | None = None
    may_resend: bool = False
    per_try_timeout: float | None = None
    stream: StreamAttempt[Any] | None = field(default=None, init=False)
    """The open stream, or None."""
    tried: list[EndpointHandle] = field(default_factory=list, init=False)
    _error: GatewayError | None = field(default=None, init=False)
    _holds_budget: bool = field(default=False, init=False)

    def record_error(self, error: GatewayError) -> None:
        """Record the error of the latest attempt."""
        self._error = error

    async def next_endpoint(self) -> EndpointHandle | None:
        """Return the endpoint for the next attempt, or None if no further attempt is allowed."""
        if not self.tried:
            handle = self._choose(self.tried)
            self.tried.append(handle)
            return handle
        reason = DECLINED if self._error is None else self._retry_reason(self._error.kind)
        self.release_budget()
        if not reason or len(self.tried) > self.context.policy.retry.max_retries:
            return None
        deadline = self.context.deadline
        assert deadline is not None
        if time.monotonic() >= deadline:
            return None
        other = self._choose_other() if reason is NOT_SENT else None
        if other is None:
            if not await self._wait_backoff(deadline):
                return None
            other = self._choose(self.tried)
        self._state.counters.retries[reason] += 1
        self._error = None
        self.tried.append(other)
        return other

    def _retry_reason(self, kind: Kind) -> str:
        if kind is Kind.CONNECT:
            return NOT_SENT
        return _RESEND_REASONS.get(kind, "") if self.may_resend else ""

    def _choose_other(self) -> EndpointHandle | None:
        handle = self._choose(self.tried)
        if handle in self.tried:
            handle.finish_attempt(AttemptOutcome.UNKNOWN)
            return None
        return handle

    async def _wait_backoff(self, deadline: float) -> bool:
        seconds = backoff(len(self.tried))
        if time.monotonic() + seconds >= deadline:
            return False
        if not self._state.retry_budget.try_acquire():
            self._state.counters.budget_exhausted += 1
            return False
        self._holds_budget = True
        await asyncio.sleep(seconds)
        return time.monotonic() < deadline

    def begin_hedge(self) -> EndpointHandle | None:
        """Return the endpoint for a hedge, or None if there is no other endpoint or the retry
        budget is exhausted. The caller must release the retry budget after the hedge."""
        handle = self._choose_other()
        if handle is None:
            return None
        if not self._state.retry_budget.try_acquire():
            self._state.counters.budget_exhausted += 1
            handle.finish_attempt(AttemptOutcome.UNKNOWN)
            return None
        self.tried.append(handle)
        return handle

    def release_budget(self) -> None:
        """If the latest attempt has acquired the retry budget, release it."""
        if self._holds_budget:
            self._holds_budget = False
            self._state.retry_budget.release()

    def take_error(self) -> GatewayError:
        """Return the error of the latest attempt, and forget it."""
        error, self._error = self._error, None
        assert error is not None
        try:
            return error
        finally:
            del error  # avoids a reference cycle with the error's traceback
