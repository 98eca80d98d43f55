"""What kind of server a backend is: declared, or asked for and remembered for a while.

*Rule 1.* One request asks, the others wait for what it learns, each no longer than its deadline.
*Rule 2.* What was known stays known where asking again fails: a server whose metadata hangs may
well serve inferences.
*Rule 3.* An answer that tells nothing lasting (not ready yet, overloaded) is believed for a second,
one that does (there is no such path) as long as a profile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from infergate.codecs.base import Profile
from infergate.codecs.profiles import GENERIC
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind

_LIFETIME: Final = 60.0  # seconds; another kind of server may come up on the same address
_DOUBTFUL: Final = 1.0  # seconds an uncertain answer is believed
_PATIENCE: Final = 2.0  # seconds a server has to say what it is
_UNREACHED: Final = frozenset({Kind.CONNECT, Kind.NO_BACKEND, Kind.OVERLOADED})
_LASTING: Final = frozenset({Kind.NOT_FOUND, Kind.UNSUPPORTED, Kind.BACKEND_GARBAGE})


class Detection:
    """Remembers what ``ask`` finds out. ``declared`` is the operator's word, which is final."""

    def __init__(self, declared: Profile | None, ask: Callable[[Call], Awaitable[Profile]]) -> None:
        self._known = declared
        self._learnt = False
        self._until = float("inf") if declared else 0.0
        self._ask: Final = ask
        self._asking: Final = asyncio.Lock()

    async def profile(self, call: Call) -> Profile:
        """The profile. ``call`` has a deadline; raises TimeoutError where others' question outlasts
        it, or what keeps the server away."""
        if self._known is not None and time.monotonic() < self._until:
            return self._known
        assert call.deadline is not None
        async with asyncio.timeout(call.deadline - time.monotonic()):
            await self._asking.acquire()
        try:
            if self._known is None or time.monotonic() >= self._until:
                self._known, lifetime = await self._learn(call)
                self._until = time.monotonic() + lifetime
            return self._known
        finally:
            self._asking.release()

    async def _learn(self, call: Call) -> tuple[Profile, float]:
        """A profile, and for how many seconds to believe it."""
        own = replace(call, returned={})
        own.tighten(time.monotonic() + _PATIENCE)
        try:
            found = await self._ask(own)
        except GatewayError as error:
            if self._known is not None and self._learnt:
                return self._known, _LIFETIME
            late = error.kind is Kind.TIMEOUT and own.deadline == call.deadline
            if late or error.kind in _UNREACHED:
                raise
            return GENERIC, _LIFETIME if error.kind in _LASTING else _DOUBTFUL
        self._learnt = True
        return found, _LIFETIME
