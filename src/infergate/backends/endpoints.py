"""The endpoints of one backend: who they are just now, which is asked, and what is learnt of it.

*Strategy.* ``routing.cluster`` decides; here it gets a clock, chance, and addresses. What the
configuration names is a ``Site``: a place that is asked as it stands, or a name that stands for as
many endpoints as it has addresses. Until a name was resolved it is an endpoint itself, which
whoever connects looks up.

*Rule 1.* An address that is gone gets no more requests; those under way are let finish, and then
its connections are closed (``left``). One that comes back before that is the same as it was.
*Rule 2.* A name that has no addresses any more keeps those it had.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from infergate.core.figures import EndpointFigures
from infergate.core.outcome import Outcome
from infergate.core.sequences import SequenceName
from infergate.core.vocabulary import (
    ADDRESSES_CHANGED,
    ENDPOINT_DOWN,
    ENDPOINT_EJECTED,
    ENDPOINT_UP,
)
from infergate.routing.balance import ConsistentHash, LeastRequest, Policy, Random, RoundRobin
from infergate.routing.cluster import Cluster, ClusterRule, Member
from infergate.routing.health import Health
from infergate.transport.base import Endpoint

__all__ = ["Balance", "Endpoints", "Lease", "Outcome", "Site"]
_MAX_MODELS: Final = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Site:
    """An endpoint as the configuration has it. ``label`` is its URL; ``weight`` that of each of its
    addresses; ``resolves``: it is a name, to be looked up now and then."""

    endpoint: Endpoint
    label: str = ""
    weight: float = 1.0
    resolves: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """How requests are spread: ``policy`` is one of POLICIES; ``hashes``: those that have a key go
    where it belongs. ``rise`` and ``fall`` are those of checks."""

    policy: str = "least-request"
    hashes: bool = False
    rule: ClusterRule = field(default_factory=ClusterRule)
    rise: int = 2
    fall: int = 3


class Lease(Member):
    """One endpoint, as those hold it who send something there. Each attempt is ``finished``
    once, whatever happened."""

    __slots__ = ("_endpoints", "checks_failed", "checks_ok", "endpoint", "site", "suspected")

    def __init__(self, endpoints: Endpoints, endpoint: Endpoint, site: int) -> None:
        weight, balance = endpoints.sites[site].weight, endpoints.balance
        name = f"{endpoint}{endpoint.path}".encode()
        super().__init__(name, weight, Health(balance.rise, balance.fall))
        self._endpoints: Final = endpoints
        self.endpoint: Final = endpoint
        self.site: Final = site
        """Its place in the configuration, from 0."""
        self.checks_ok = 0
        self.checks_failed = 0
        self.suspected = False
        """A check is under way whose failure ejects it."""

    def take(self) -> Lease:
        """One more attempt, that nobody chose, is under way."""
        self.active += 1
        return self

    def finished(self, outcome: Outcome) -> None:
        """An attempt is over."""
        if outcome is Outcome.OK:  # nearly always: it needs no clock
            self.served()
        else:
            self._endpoints.finished(self, outcome)

    def checked(self, *, well: bool) -> None:
        """A check is over."""
        self._endpoints.checked(self, well=well)


class Endpoints:
    """Those of one backend, whose sites are ``sites``, at least one."""

    def __init__(
        self,
        backend: str,
        sites: Sequence[Site],
        balance: Balance | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Random = random.random,
    ) -> None:
        self._backend: Final = backend
        self.sites: Final = tuple(sites)
        self.balance: Final = balance or Balance()
        self._clock: Final = clock
        self._at: Final = [[Lease(self, site.endpoint, i)] for i, site in enumerate(self.sites)]
        self._resolved: Final[set[int]] = set()
        self._leaving: Final[dict[tuple[int, Endpoint], Lease]] = {}
        self._gone: Final = [EndpointFigures(backend, site.label) for site in self.sites]
        """What was counted of addresses that have left."""
        self._lookups_failed: Final = [0] * len(self.sites)
        self._cluster: Final = Cluster(
            self.all(), _policy(self.balance, chance), chance, self.balance.rule
        )

        self._lone = self._only()
        self.models: Final[set[str]] = set()
        """Those that an endpoint has served, as clients call them."""
        self.suspect: Callable[[Lease], None] = lambda _: None
        """Begins a check of an endpoint that may have failed by itself or because of requests; then
        calls ``judged``."""

    def _only(self) -> Lease | None:
        """The one there is, where there is just one: nothing is to be decided then."""
        members = self._cluster.members
        return members[0] if len(members) == 1 else None

    # ---- choosing

    @property
    def spreads(self) -> bool:
        """Whether there are several now: then a sequence must keep to one."""
        return self._lone is None

    def choose(self, tried: Collection[Lease] = (), key: str = "") -> Lease:
        """The best for the next attempt, another than those that were ``tried`` where there is one.

        A lone endpoint is tried again, so that a connection refused while a server restarts gets
        the second attempt that several endpoints would give it.
        """
        lone = self._lone
        if lone is not None:
            return lone.take()
        return self._cluster.choose(self._clock(), tried, key)

    def keeper(self, sequence: SequenceName) -> Lease:
        """The one that has ``sequence``, whatever is known of it (docs/decisions/0013)."""
        return self._cluster.keeper(sequence)

    def all(self) -> Sequence[Lease]:
        """All there are, in the configuration's order. Who sends one something ``take``s it."""
        return [lease for leases in self._at for lease in leases]

    def place(self, lease: Lease) -> str:
        """Which ``lease`` is, as clients may be told it: addresses they may not."""
        return f"endpoint {lease.site + 1} of {len(self.sites)}"

    # ---- what is learnt

    def finished(self, lease: Lease, outcome: Outcome) -> None:
        """An attempt on ``lease`` is over."""
        now = self._clock()
        if self._cluster.finished(lease, outcome, now):
            self._tell_ejected(lease, now)
        elif not lease.suspected and self._cluster.suspects(lease, now):
            lease.suspected = True
            self.suspect(lease)

    def serves(self, model: str) -> None:
        """An endpoint has served ``model``."""
        if len(self.models) < _MAX_MODELS:
            self.models.add(model)

    def judged(self, lease: Lease, *, well: bool) -> None:
        """The check of ``lease``, which was suspected, is over."""
        now = self._clock()
        lease.suspected = False
        if well:
            lease.outlier.acquit()
        elif self._cluster.convicted(lease, now):
            self._tell_ejected(lease, now)

    def _tell_ejected(self, lease: Lease, now: float) -> None:
        _log.warning(
            "backend '%s': %s is ejected for %.0f s: %d failures in a row",
            self._backend,
            lease.endpoint,
            lease.outlier.until - now,
            self.balance.rule.outliers.consecutive,
            extra=ENDPOINT_EJECTED,
        )

    def checked(self, lease: Lease, *, well: bool) -> None:
        """A check of ``lease`` is over."""
        if well:
            lease.checks_ok += 1
        else:
            lease.checks_failed += 1
        if self._cluster.checked(lease, self._clock(), well=well):
            word = "back: its checks go well" if well else "down: its checks fail"
            _log.warning(
                "backend '%s': %s is %s",
                self._backend,
                lease.endpoint,
                word,
                extra=ENDPOINT_UP if well else ENDPOINT_DOWN,
            )

    @property
    def ready(self) -> bool | None:
        """Whether any may be asked; None where too little is known: there are no checks, or one
        has not been checked yet."""
        told = [lease.health.up for lease in self._cluster.members if lease.health.told]
        return True if any(told) else None if len(told) < len(self._cluster.members) else False

    # ---- names

    def resolved(self, site: int, addresses: Collection[str]) -> None:
        """The name of the site has ``addresses`` now; none: it could not be looked up."""
        if not addresses:
            self._lookups_failed[site] += 1
            return
        wanted = [
            replace(self.sites[site].endpoint, address=each) for each in sorted(set(addresses))
        ]
        known = {lease.endpoint: lease for lease in self._at[site]}
        if list(known) == wanted:
            return
        self._at[site] = [
            known.pop(each) if each in known else self._joined(site, each) for each in wanted
        ]
        self._leaving.update({(site, endpoint): lease for endpoint, lease in known.items()})
        self._cluster.replace(self.all(), self._clock(), slowly=site in self._resolved)
        self._lone = self._only()
        if site in self._resolved:
            _log.info(
                "backend '%s': %s has %d addresses now",
                self._backend,
                self.sites[site].label,
                len(wanted),
                extra=ADDRESSES_CHANGED,
            )
        self._resolved.add(site)

    def _joined(self, site: int, endpoint: Endpoint) -> Lease:
        at = site, endpoint
        return self._leaving.pop(at) if at in self._leaving else Lease(self, endpoint, site)

    def left(self) -> Sequence[Endpoint]:
        """Those that have left and have nothing under way any more, each told once: its connections
        are to be closed."""
        over = {at: lease for at, lease in self._leaving.items() if not lease.active}
        for at, lease in over.items():
            del self._leaving[at]
            self._gone[lease.site] = _with(self._gone[lease.site], lease)
        staying = {lease.endpoint for lease in (*self.all(), *self._leaving.values())}
        return [e for e in dict.fromkeys(e for _, e in over) if e not in staying]

    # ---- what metrics tell

    def figures(self) -> Sequence[EndpointFigures]:
        """Of each site."""
        now = self._clock()
        told = list(self._gone)
        for lease in (*self.all(), *self._leaving.values()):
            told[lease.site] = _with(told[lease.site], lease)
        for site, leases in enumerate(self._at):
            down = sum(not lease.health.up for lease in leases)
            out = sum(lease.health.up and lease.outlier.until > now for lease in leases)
            told[site] = told[site]._replace(
                available=len(leases) - down - out,
                down=down,
                ejected=out,
                lookups_failed=self._lookups_failed[site],
            )
        return told


def _with(told: EndpointFigures, lease: Lease) -> EndpointFigures:
    """``told`` and what was counted of ``lease``."""
    return told._replace(
        active=told.active + lease.active,
        ok=told.ok + lease.ok,
        failed=told.failed + lease.failed,
        ejections=told.ejections + lease.outlier.ejections,
        checks_ok=told.checks_ok + lease.checks_ok,
        checks_failed=told.checks_failed + lease.checks_failed,
    )


def _policy(balance: Balance, chance: Random) -> Policy[Lease]:
    policy: Policy[Lease] = POLICIES[balance.policy](chance)
    return ConsistentHash(policy) if balance.hashes else policy


POLICIES: Final[dict[str, Callable[[Random], Policy[Lease]]]] = {
    "least-request": LeastRequest,
    "round-robin": RoundRobin,
}
