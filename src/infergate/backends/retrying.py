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

from infergate.backends.endpoints import Lease, Outcome
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.tally import Tally
from infergate.routing.backoff import backoff
from infergate.routing.budget import RetryBudget

NOT_SENT: Final = "not_sent"
DECLINED: Final = "declined"
_RESENT: Final[Mapping[Kind, str]] = {Kind.BACKEND_GARBAGE: "broken", Kind.TIMEOUT: "timeout"}

Choose = Callable[[list[Lease]], Lease]
"""Returns the best endpoint for the next attempt, preferably not one of those given."""


class Tries:
    """The attempts of ``call``. ``may_resend`` allows executing the request twice. A caller of
    ``begin`` or ``begin_after`` must call ``end``."""

    __slots__ = ("_budget", "_charged", "_choose", "_error", "_tally", "asked", "call", "resend")

    def __init__(
        self, call: Call, choose: Choose, budget: RetryBudget, tally: Tally, *, resend: bool
    ) -> None:
        self._choose = choose
        self._budget = budget
        self._tally = tally
        self._charged = False
        self._error: GatewayError | None = None
        self.call = call
        self.resend = resend
        self.asked: list[Lease] = []

    def first(self) -> Lease:
        """Return the endpoint of the first attempt. Raises NO_BACKEND."""
        handle = self._choose(self.asked)
        self.asked.append(handle)
        self._budget.requests += 1
        return handle

    def begun(self, lease: Lease, error: GatewayError) -> None:
        """Start, instead of by ``begin``, after an attempt that has already failed with
        ``error``."""
        self.asked.append(lease)
        self._error = error
        self._budget.requests += 1

    def refused(self, error: GatewayError) -> None:
        """Record the error of the latest attempt."""
        self._error = error

    async def next(self) -> Lease | None:
        """Return the endpoint of the next attempt after a failed one, or None if there is no
        retry."""
        reason = DECLINED if self._error is None else self._why(self._error.kind)
        self._discharge()
        if not reason or len(self.asked) > self.call.retry.retries:
            return None
        handle = self._other() if reason is NOT_SENT else None
        if handle is None:
            if not await self._wait():
                return None
            handle = self._choose(self.asked)
        self._tally.retries[reason] += 1
        self._error = None
        self.asked.append(handle)
        return handle

    def _why(self, kind: Kind) -> str:
        if kind is Kind.CONNECT:
            return NOT_SENT
        return _RESENT.get(kind, "") if self.resend else ""

    def _other(self) -> Lease | None:
        """Return an endpoint that has not been tried, or None."""
        try:
            handle = self._choose(self.asked)
        except GatewayError:  # no endpoint is left at all
            return None
        if handle in self.asked:
            handle.finished(Outcome.UNTOLD)
            return None
        return handle

    async def _wait(self) -> bool:
        """Wait for the backoff; return whether there is another attempt."""
        deadline = self.call.deadline
        assert deadline is not None
        seconds = backoff(len(self.asked))
        if time.monotonic() + seconds >= deadline:
            return False
        if not self._budget.take():
            self._tally.exhausted += 1
            return False
        self._charged = True
        await asyncio.sleep(seconds)
        return time.monotonic() < deadline

    def hedge(self) -> Lease | None:
        """Return the endpoint of a hedge, or None if there is no other endpoint or no retry budget.
        The caller must give the budget back."""
        handle = self._other()
        if handle is None:
            return None
        if not self._budget.take():
            self._tally.exhausted += 1
            handle.finished(Outcome.UNTOLD)
            return None
        self.asked.append(handle)
        return handle

    def over(self) -> None:
        """End the request's accounting."""
        self._budget.requests -= 1
        self._discharge()

    def _discharge(self) -> None:
        if self._charged:
            self._charged = False
            self._budget.give_back()

    def error(self) -> GatewayError:
        """Return the error of the latest attempt, and forget it."""
        error, self._error = self._error, None
        assert error is not None
        try:
            return error
        finally:
            del error  # its traceback will refer to this frame
