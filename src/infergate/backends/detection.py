"""What kind of server a backend is: declared, or asked for and remembered for a while.

*Rule 1.* What was known stays known where asking again fails: a server whose metadata hangs may
well serve inferences.
*Rule 2.* An answer that tells nothing lasting (not ready yet, overloaded) is believed for a second,
one that does (there is no such path) as long as a profile.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from infergate.backends.remembered import DOUBTFUL, Remembered
from infergate.codecs.base import Profile
from infergate.codecs.profiles import GENERIC
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind

_LIFETIME: Final = 60.0  # seconds; another kind of server may come up on the same address
_DOUBTFUL: Final = DOUBTFUL
_PATIENCE: Final = 2.0  # seconds a server has to say what it is
_UNREACHED: Final = frozenset({Kind.CONNECT, Kind.NO_BACKEND, Kind.OVERLOADED})
_LASTING: Final = frozenset({Kind.NOT_FOUND, Kind.UNSUPPORTED, Kind.BACKEND_GARBAGE})


class Detection:
    """Remembers what ``ask`` finds out. ``declared`` is the operator's word, which is final."""

    def __init__(self, declared: Profile | None, ask: Callable[[Call], Awaitable[Profile]]) -> None:
        self._declared: Final = declared
        self._ask: Final = ask
        self._learnt: Profile | None = None
        self._remembered: Final = Remembered(self._learn)

    @property
    def known(self) -> Profile:
        """The profile as far as it is known without asking."""
        return self._declared or self._remembered.known or GENERIC

    async def profile(self, call: Call) -> Profile:
        """The profile. ``call`` has a deadline; raises TimeoutError where others' question outlasts
        it, or what keeps the server away."""
        return self._declared or await self._remembered.get(call)

    async def _learn(self, call: Call) -> tuple[Profile, float]:
        """A profile, and for how many seconds to believe it."""
        own = call.deadline
        call.tighten(time.monotonic() + _PATIENCE)
        try:
            self._learnt = await self._ask(call)
        except GatewayError as error:
            if self._learnt is not None:
                return self._learnt, _LIFETIME
            late = error.kind is Kind.TIMEOUT and call.deadline == own
            if late or error.kind in _UNREACHED:
                raise
            return GENERIC, _LIFETIME if error.kind in _LASTING else _DOUBTFUL
        return self._learnt, _LIFETIME
