"""The endpoints of one backend: their current addresses, their load and health, and the choice
among them.

*Strategy.* ``routing.cluster`` makes the decisions; this module supplies the clock, random numbers
and addresses. Each ``ConfiguredEndpoint`` is either a fixed address, or a DNS name that stands for
as many endpoints as it has addresses. A name that has not been resolved yet is itself an endpoint,
resolved when a connection is opened.

*Rule 1.* A removed address gets no new requests. Its requests in progress may finish; then its
connections are closed (``pop_drained``). An address that returns before that keeps its state.
*Rule 2.* A name that can no longer be resolved keeps its last addresses.
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
    """An endpoint as written in the configuration. ``label`` is its URL, ``weight`` applies to each
    of its addresses, and ``uses_dns`` marks a name that is resolved periodically."""

    endpoint: Endpoint
    label: str = ""
    weight: float = 1.0
    resolves: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """How requests are spread over endpoints. ``policy`` is a key of POLICIES. With
    ``uses_hashing``, a request with a key goes to the endpoint that the key hashes to. ``rise`` and
    ``fall`` are the health-check thresholds."""

    policy: str = "least-request"
    hashes: bool = False
    rule: ClusterRule = field(default_factory=ClusterRule)
    rise: int = 2
    fall: int = 3


class Lease(Member):
    """One endpoint and its accounting, as held by its callers. Each attempt that was begun must be
    finished exactly once."""

    __slots__ = ("_endpoints", "checks_failed", "checks_ok", "endpoint", "site", "suspected")

    def __init__(self, endpoints: Endpoints, endpoint: Endpoint, site: int) -> None:
        weight, balance = endpoints.sites[site].weight, endpoints.balance
        name = f"{endpoint}{endpoint.path}".encode()
        super().__init__(name, weight, Health(balance.rise, balance.fall))
        self._endpoints: Final = endpoints
        self.endpoint: Final = endpoint
        self.site: Final = site
        """The index of the endpoint in the configuration, from 0."""
        self.checks_ok = 0
        self.checks_failed = 0
        self.suspected = False
        """A check is running whose failure would eject the endpoint."""

    def take(self) -> Lease:
        """Count an attempt on an endpoint that was not picked by the load balancer."""
        self.active += 1
        return self

    def finished(self, outcome: Outcome) -> None:
        """Record the end of an attempt."""
        if outcome is Outcome.OK:  # the common case needs no clock
            self.served()
        else:
            self._endpoints.finished(self, outcome)

    def checked(self, *, well: bool) -> None:
        """Record the result of a health check."""
        self._endpoints.checked(self, well=well)


class Endpoints:
    """The endpoints of one backend, with at least one configured."""

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
        self._at: Final = [
            [Lease(self, entry.endpoint, index)] for index, entry in enumerate(self.sites)
        ]
        self._resolved: Final[set[int]] = set()
        self._leaving: Final[dict[tuple[int, Endpoint], Lease]] = {}
        self._gone: Final = [EndpointFigures(backend, entry.label) for entry in self.sites]
        """Accumulated counters of removed addresses."""
        self._lookups_failed: Final = [0] * len(self.sites)
        self._cluster: Final = Cluster(
            self.all(), _policy(self.balance, chance), chance, self.balance.rule
        )

        self._lone = self._only()
        self.models: Final[set[str]] = set()
        """Models that some endpoint has served, under the clients' names."""
        self.suspect: Callable[[Lease], None] = lambda _: None
        """Callback that starts a health check of an endpoint whose failures may be its own fault or
        the requests'. It must end in ``finish_suspect_check``."""

    def _only(self) -> Lease | None:
        """Return the only endpoint if there is just one, which needs no decision."""
        members = self._cluster.members
        return members[0] if len(members) == 1 else None

    # ---- choosing

    @property
    def spreads(self) -> bool:
        """Whether there are several endpoints, so that a sequence must keep to one of them."""
        return self._lone is None

    def choose(self, tried: Collection[Lease] = (), key: str = "") -> Lease:
        """Return the best endpoint for the next attempt, preferably not one of ``tried``.

        A single endpoint is returned again: if it refuses connections while it restarts, the
        request gets the second attempt that it would have with several endpoints.
        """
        single = self._lone
        if single is not None:
            return single.take()
        return self._cluster.choose(self._clock(), tried, key)

    def keeper(self, sequence: SequenceName) -> Lease:
        """Return the endpoint that owns ``sequence``, regardless of its health
        (docs/decisions/0013)."""
        return self._cluster.keeper(sequence)

    def all(self) -> Sequence[Lease]:
        """Return all endpoints in configuration order. To send to one, call ``begin_attempt`` on
        it."""
        return [handle for handles in self._at for handle in handles]

    def place(self, lease: Lease) -> str:
        """Return the endpoint's position in the configuration, for error texts: clients must not
        learn addresses."""
        return f"endpoint {lease.site + 1} of {len(self.sites)}"

    # ---- outcomes and health

    def finished(self, lease: Lease, outcome: Outcome) -> None:
        """Record the end of an attempt."""
        now = self._clock()
        if self._cluster.finished(lease, outcome, now):
            self._tell_ejected(lease, now)
        elif not lease.suspected and self._cluster.suspects(lease, now):
            lease.suspected = True
            self.suspect(lease)

    def serves(self, model: str) -> None:
        """Record that an endpoint has served ``model``."""
        if len(self.models) < _MAX_MODELS:
            self.models.add(model)

    def judged(self, lease: Lease, *, well: bool) -> None:
        """Record the result of checking a suspected endpoint."""
        now = self._clock()
        lease.suspected = False
        if well:
            lease.outlier.acquit()
        elif self._cluster.convicted(lease, now):
            self._tell_ejected(lease, now)

    def _tell_ejected(self, lease: Lease, now: float) -> None:
        _log.warning(
            "backend '%s': %s is ejected for %.0f s after %d consecutive failures",
            self._backend,
            lease.endpoint,
            lease.outlier.until - now,
            self.balance.rule.outliers.consecutive,
            extra=ENDPOINT_EJECTED,
        )

    def checked(self, lease: Lease, *, well: bool) -> None:
        """Record the result of a health check."""
        if well:
            lease.checks_ok += 1
        else:
            lease.checks_failed += 1
        if self._cluster.checked(lease, self._clock(), well=well):
            state = "up: its health checks pass" if well else "down: its health checks fail"
            _log.warning(
                "backend '%s': %s is %s",
                self._backend,
                lease.endpoint,
                state,
                extra=ENDPOINT_UP if well else ENDPOINT_DOWN,
            )

    @property
    def ready(self) -> bool | None:
        """Whether any endpoint is up; None if that is unknown because health checks are off or have
        not covered all endpoints."""
        checked = [member.health.up for member in self._cluster.members if member.health.told]
        return (
            True if any(checked) else None if len(checked) < len(self._cluster.members) else False
        )

    # ---- DNS names

    def resolved(self, site: int, addresses: Collection[str]) -> None:
        """Set the addresses of a DNS name. An empty collection counts as a failed lookup."""
        if not addresses:
            self._lookups_failed[site] += 1
            return
        wanted = [
            replace(self.sites[site].endpoint, address=address)
            for address in sorted(set(addresses))
        ]
        known = {handle.endpoint: handle for handle in self._at[site]}
        if list(known) == wanted:
            return
        self._at[site] = [
            known.pop(address) if address in known else self._joined(site, address)
            for address in wanted
        ]
        self._leaving.update({(site, endpoint): handle for endpoint, handle in known.items()})
        self._cluster.replace(self.all(), self._clock(), slowly=site in self._resolved)
        self._lone = self._only()
        if site in self._resolved:
            _log.info(
                "backend '%s': %s now has %d addresses",
                self._backend,
                self.sites[site].label,
                len(wanted),
                extra=ADDRESSES_CHANGED,
            )
        self._resolved.add(site)

    def _joined(self, site: int, endpoint: Endpoint) -> Lease:
        key = site, endpoint
        return self._leaving.pop(key) if key in self._leaving else Lease(self, endpoint, site)

    def left(self) -> Sequence[Endpoint]:
        """Return the removed endpoints whose last attempt has ended, each once, so that their
        connections can be closed."""
        drained = {key: handle for key, handle in self._leaving.items() if not handle.active}
        for key, handle in drained.items():
            del self._leaving[key]
            self._gone[handle.site] = _with(self._gone[handle.site], handle)
        in_use = {handle.endpoint for handle in (*self.all(), *self._leaving.values())}
        return [
            endpoint
            for endpoint in dict.fromkeys(endpoint for _, endpoint in drained)
            if endpoint not in in_use
        ]

    # ---- statistics

    def figures(self) -> Sequence[EndpointFigures]:
        """Return the statistics of each configured endpoint."""
        now = self._clock()
        totals = list(self._gone)
        for handle in (*self.all(), *self._leaving.values()):
            totals[handle.site] = _with(totals[handle.site], handle)
        for index, handles in enumerate(self._at):
            down = sum(not handle.health.up for handle in handles)
            ejected = sum(handle.health.up and handle.outlier.until > now for handle in handles)
            totals[index] = totals[index]._replace(
                available=len(handles) - down - ejected,
                down=down,
                ejected=ejected,
                lookups_failed=self._lookups_failed[index],
            )
        return totals


def _with(told: EndpointFigures, lease: Lease) -> EndpointFigures:
    """Return ``totals`` plus the counters of one endpoint."""
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
