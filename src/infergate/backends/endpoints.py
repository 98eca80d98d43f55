"""The endpoints of one backend: which is asked, and what is learnt of it."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final

from infergate.core.sequences import SequenceName
from infergate.routing.affinity import Rendezvous
from infergate.transport.base import Endpoint


class Outcome(enum.Enum):
    """Whether an endpoint did its part."""

    OK = "ok"
    FAILED = "failed"
    """It could not be reached, broke off, was too slow or said that it cannot serve now."""
    UNTOLD = "untold"
    """Nothing can be said: the client went away, or set too short a deadline."""


class Lease:
    """An endpoint that was chosen for one attempt. It is ``finished`` once, whatever happened."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint: Final = endpoint

    def finished(self, outcome: Outcome) -> None:
        """The attempt is over."""


class Endpoints:
    """Chooses, for one backend."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._leases: Final = tuple(map(Lease, endpoints))
        self._of: Final = {lease.endpoint: lease for lease in self._leases}
        self._affinity: Final = Rendezvous({f"{e}{e.path}": lease for e, lease in self._of.items()})
        self._next = 0

    @property
    def spreads(self) -> bool:
        """Whether there are several, or may be: then a sequence must keep to one."""
        return len(self._leases) > 1

    def choose(self, tried: Collection[Endpoint] = (), key: str = "") -> Lease:
        """The best for the next attempt, another than those that were ``tried`` where there is one.
        Raises NO_BACKEND where there is none at all.

        A lone endpoint is tried again, so that a connection refused while a server restarts gets
        the second attempt that several endpoints would give it.
        """
        del key
        if not tried:
            lease = self._leases[self._next]
            self._next = (self._next + 1) % len(self._leases)
            return lease
        turn = self._leases[self._next :] + self._leases[: self._next]
        return next((lease for lease in turn if lease.endpoint not in tried), turn[0])

    def keeper(self, sequence: SequenceName) -> Lease:
        """The one that has ``sequence``, whatever is known of it (docs/decisions/0013)."""
        return self._affinity.keeper(sequence)

    def lease(self, endpoint: Endpoint) -> Lease:
        """``endpoint`` itself, which is one of ``all``."""
        return self._of[endpoint]

    def all(self) -> Sequence[Endpoint]:
        """All there are, in the configuration's order."""
        return tuple(lease.endpoint for lease in self._leases)

    def place(self, endpoint: Endpoint) -> str:
        """Which of how many ``endpoint`` is, as clients may be told: addresses they may not."""
        return f"endpoint {self.all().index(endpoint) + 1} of {len(self._leases)}"
