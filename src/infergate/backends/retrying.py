"""The tries of one request: whether there is another after one that failed, where, and when.

*Rule 1.* What failed is tried again where nothing was sent; where it may be carried out twice also
if it broke off, its try was too slow, or the endpoint said that it cannot serve now.
*Rule 2.* Where nothing was sent the next endpoint is asked at once, and free of charge: there is no
more to do for anyone than if it had been chosen first. Any other try waits its back-off and is one
of the budget's.
*Rule 3.* Nothing is tried past the deadline, nor where waiting would pass it.
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
"""Gives the best for the next try, another than those that were asked where there is one."""


class Tries:
    """Those of ``call``, whose request may be carried out twice if ``resend``. Who asks for the
    ``first`` tells when it is ``over``."""

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
        """Whom to ask. Raises NO_BACKEND."""
        lease = self._choose(self.asked)
        self.asked.append(lease)
        self._budget.requests += 1
        return lease

    def begun(self, lease: Lease, error: GatewayError) -> None:
        """Instead of the ``first``: ``lease`` was asked, and refused with ``error``."""
        self.asked.append(lease)
        self._error = error
        self._budget.requests += 1

    def refused(self, error: GatewayError) -> None:
        """The latest try ended in ``error``."""
        self._error = error

    async def next(self) -> Lease | None:
        """Whom to ask after the latest try, which was refused or declined; None: nobody."""
        why = DECLINED if self._error is None else self._why(self._error.kind)
        self._discharge()
        if not why or len(self.asked) > self.call.retry.retries:
            return None
        lease = self._other() if why is NOT_SENT else None
        if lease is None:
            if not await self._wait():
                return None
            lease = self._choose(self.asked)
        self._tally.retries[why] += 1
        self._error = None
        self.asked.append(lease)
        return lease

    def _why(self, kind: Kind) -> str:
        if kind is Kind.CONNECT:
            return NOT_SENT
        return _RESENT.get(kind, "") if self.resend else ""

    def _other(self) -> Lease | None:
        """Another endpoint than those that were asked."""
        try:
            lease = self._choose(self.asked)
        except GatewayError:  # there is none at all any more
            return None
        if lease in self.asked:
            lease.finished(Outcome.UNTOLD)
            return None
        return lease

    async def _wait(self) -> bool:
        """Whether there is another try, after its back-off."""
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
        """Whom to ask besides; None: nobody, for there is no other endpoint or no budget. The
        budget is to be given back."""
        lease = self._other()
        if lease is None:
            return None
        if not self._budget.take():
            self._tally.exhausted += 1
            lease.finished(Outcome.UNTOLD)
            return None
        self.asked.append(lease)
        return lease

    def over(self) -> None:
        """There are no more."""
        self._budget.requests -= 1
        self._discharge()

    def _discharge(self) -> None:
        if self._charged:
            self._charged = False
            self._budget.give_back()

    def error(self) -> GatewayError:
        """What the latest try was refused with, once."""
        error, self._error = self._error, None
        assert error is not None
        try:
            return error
        finally:
            del error  # it will know this frame
