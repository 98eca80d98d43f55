"""The attempts of one request: whether a failed one is followed by another, on which endpoint, and
when.

*Rule 1.* A request that was not sent is retried. One that may be executed twice is also retried if
the connection broke, the attempt timed out, or the endpoint said that it cannot serve now.
*Rule 2.* If nothing was sent, the next endpoint is tried at once and without using the retry
budget, because that costs no more than choosing it first. Any other retry waits for its backoff and
uses the budget.
*Rule 3.* No attempt starts after the deadline, and no backoff may reach it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from infergate.backends.endpoints import AttemptOutcome, EndpointHandle
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.routing.backoff import backoff
from infergate.routing.budget import RetryBudget

NOT_SENT: Final = "not_sent"
DECLINED: Final = "declined"
_RESEND_REASONS: Final[Mapping[Kind, str]] = {
    Kind.BACKEND_GARBAGE: "broken",
    Kind.TIMEOUT: "timeout",
}

ChooseEndpoint = Callable[[list[EndpointHandle]], EndpointHandle]
"""Returns the best endpoint for the next attempt, preferably not one of those given."""


class Attempts:
    """The attempts of ``context``. ``may_resend`` allows executing the request twice. A caller of
    ``begin`` or ``begin_after`` must call ``end``."""

    __slots__ = (
        "_budget",
        "_choose",
        "_counters",
        "_error",
        "_holds_budget",
        "context",
        "may_resend",
        "tried",
    )

    def __init__(
        self,
        context: RequestContext,
        choose: ChooseEndpoint,
        budget: RetryBudget,
        counters: BackendCounters,
        *,
        may_resend: bool,
    ) -> None:
        self._choose = choose
        self._budget = budget
        self._counters = counters
        self._holds_budget = False
        self._error: GatewayError | None = None
        self.context = context
        self.may_resend = may_resend
        self.tried: list[EndpointHandle] = []

    def begin(self) -> EndpointHandle:
        """Return the endpoint of the first attempt. Raises NO_BACKEND."""
        handle = self._choose(self.tried)
        self.tried.append(handle)
        self._budget.active_requests += 1
        return handle

    def begin_after(self, handle: EndpointHandle, error: GatewayError) -> None:
        """Start, instead of by ``begin``, after an attempt that has already failed with
        ``error``."""
        self.tried.append(handle)
        self._error = error
        self._budget.active_requests += 1

    def record_error(self, error: GatewayError) -> None:
        """Record the error of the latest attempt."""
        self._error = error

    async def next_endpoint(self) -> EndpointHandle | None:
        """Return the endpoint of the next attempt after a failed one, or None if there is no
        retry."""
        reason = DECLINED if self._error is None else self._retry_reason(self._error.kind)
        self._return_budget()
        if not reason or len(self.tried) > self.context.policy.retry.max_retries:
            return None
        handle = self._choose_other() if reason is NOT_SENT else None
        if handle is None:
            if not await self._wait_backoff():
                return None
            handle = self._choose(self.tried)
        self._counters.retries[reason] += 1
        self._error = None
        self.tried.append(handle)
        return handle

    def _retry_reason(self, kind: Kind) -> str:
        if kind is Kind.CONNECT:
            return NOT_SENT
        return _RESEND_REASONS.get(kind, "") if self.may_resend else ""

    def _choose_other(self) -> EndpointHandle | None:
        """Return an endpoint that has not been tried, or None."""
        try:
            handle = self._choose(self.tried)
        except GatewayError:  # no endpoint is left at all
            return None
        if handle in self.tried:
            handle.finish_attempt(AttemptOutcome.UNKNOWN)
            return None
        return handle

    async def _wait_backoff(self) -> bool:
        """Wait for the backoff; return whether there is another attempt."""
        deadline = self.context.deadline
        assert deadline is not None
        seconds = backoff(len(self.tried))
        if time.monotonic() + seconds >= deadline:
            return False
        if not self._budget.try_acquire():
            self._counters.budget_exhausted += 1
            return False
        self._holds_budget = True
        await asyncio.sleep(seconds)
        return time.monotonic() < deadline

    def begin_hedge(self) -> EndpointHandle | None:
        """Return the endpoint of a hedge, or None if there is no other endpoint or no retry budget.
        The caller must give the budget back."""
        handle = self._choose_other()
        if handle is None:
            return None
        if not self._budget.try_acquire():
            self._counters.budget_exhausted += 1
            handle.finish_attempt(AttemptOutcome.UNKNOWN)
            return None
        self.tried.append(handle)
        return handle

    def end(self) -> None:
        """End the request's accounting."""
        self._budget.active_requests -= 1
        self._return_budget()

    def _return_budget(self) -> None:
        if self._holds_budget:
            self._holds_budget = False
            self._budget.release()

    def take_error(self) -> GatewayError:
        """Return the error of the latest attempt, and forget it."""
        error, self._error = self._error, None
        assert error is not None
        try:
            return error
        finally:
            del error  # its traceback will refer to this frame
