"""The endpoints of one backend, with their current addresses, load and health, and the choice of an
endpoint.

``routing.cluster`` makes the decisions; this module supplies the clock, random numbers and
addresses. Each ``ConfiguredEndpoint`` is a fixed address, or a DNS name that stands for one
endpoint per address. A name that has not been resolved is one endpoint, and is resolved when a
connection is opened.

*Rule 1.* A removed address gets no new requests. Its connections are closed when its requests in
progress have finished (``pop_drained``). An address that reappears before its connections are
closed keeps its state.
*Rule 2.* A name that can no longer be resolved keeps its last addresses.
*Rule 3.* A watched name (``endpoint_slice_watch``) without addresses is one unresolved endpoint
again, because its last addresses may belong to other servers by now."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from infergate.core.attempt_outcome import AttemptOutcome
from infergate.core.log_events import (
    ADDRESSES_CHANGED,
    ENDPOINT_DOWN,
    ENDPOINT_EJECTED,
    ENDPOINT_UP,
)
from infergate.core.sequences import SequenceKey
from infergate.core.stats import EndpointStats
from infergate.routing.balance import (
    BalancingPolicy,
    ConsistentHash,
    LeastRequest,
    RandomSource,
    RoundRobin,
)
from infergate.routing.cluster import Cluster, ClusterMember, ClusterRule
from infergate.routing.health import EndpointHealth
from infergate.transport.base import Endpoint

__all__ = ["AttemptOutcome", "BalanceSettings", "ConfiguredEndpoint", "EndpointHandle", "Endpoints"]
_MAX_KNOWN_MODELS: Final = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConfiguredEndpoint:
    """An endpoint as written in the configuration. ``label`` is its URL, ``weight`` applies to each
    of its addresses, and ``uses_dns`` marks a name that is resolved periodically."""

    endpoint: Endpoint
    label: str = ""
    weight: float = 1.0
    uses_dns: bool = False


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Load-balancing settings. ``policy`` is a key of POLICIES. With ``uses_hashing``, the hash of
    a request's key selects the endpoint if the request has a key. ``rise`` and ``fall`` are the
    numbers of consecutive successful and failed health checks after which an endpoint is up or
    down."""

    policy: str = "least-request"
    uses_hashing: bool = False
    cluster_rule: ClusterRule = field(default_factory=ClusterRule)
    rise: int = 2
    fall: int = 3


class EndpointHandle(ClusterMember):
    """One endpoint and its accounting. Callers must finish each attempt exactly once."""

    __slots__ = (
        "_endpoints",
        "checks_failed",
        "checks_ok",
        "configured_index",
        "endpoint",
        "is_suspected",
    )

    def __init__(self, endpoints: Endpoints, endpoint: Endpoint, configured_index: int) -> None:
        weight, balance = endpoints.configured[configured_index].weight, endpoints.settings
        name = f"{endpoint}{endpoint.path}".encode()
        super().__init__(name, weight, EndpointHealth(balance.rise, balance.fall))
        self._endpoints: Final = endpoints
        self.endpoint: Final = endpoint
        self.configured_index: Final = configured_index
        """The zero-based index of the endpoint in the configuration."""
        self.checks_ok = 0
        self.checks_failed = 0
        self.is_suspected = False
        """Whether a health check is running whose failure ejects the endpoint."""

    def begin_attempt(self) -> EndpointHandle:
        """Count an attempt on an endpoint that the load balancer did not pick."""
        self.active += 1
        return self

    def finish_attempt(self, outcome: AttemptOutcome) -> None:
        """Record the end of an attempt."""
        if outcome is AttemptOutcome.OK:  # the common case needs no clock
            self.record_success()
        else:
            self._endpoints.finish_attempt(self, outcome)

    def record_check(self, *, is_healthy: bool) -> None:
        """Record the result of a health check."""
        self._endpoints.record_check(self, is_healthy=is_healthy)


class Endpoints:
    """The endpoints of one backend; at least one endpoint is configured."""

    def __init__(
        self,
        backend: str,
        configured: Sequence[ConfiguredEndpoint],
        settings: BalanceSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        random_float: RandomSource = random.random,
    ) -> None:
        self._backend: Final = backend
        self.configured: Final = tuple(configured)
        self.settings: Final = settings or BalanceSettings()
        self._clock: Final = clock
        self._handles: Final = [
            [EndpointHandle(self, entry.endpoint, index)]
            for index, entry in enumerate(self.configured)
        ]
        self._resolved_indices: Final[set[int]] = set()
        self._draining: Final[dict[tuple[int, Endpoint], EndpointHandle]] = {}
        self._removed_stats: Final = [
            EndpointStats(backend, entry.label) for entry in self.configured
        ]
        """Accumulated counters of removed addresses."""
        self._failed_lookups: Final = [0] * len(self.configured)
        self._watches: Final[dict[int, tuple[int, bool]]] = {}
        """The number of failures of each watch, and whether the watch is up to date."""
        policy = POLICIES[self.settings.policy](random_float)
        self._cluster: Final = Cluster(
            self.all_handles(),
            ConsistentHash(policy) if self.settings.uses_hashing else policy,
            random_float,
            self.settings.cluster_rule,
        )
        self._update_single()
        self.known_models: Final[set[str]] = set()
        """Models that at least one endpoint has served, under the clients' names."""
        self.on_suspected: Callable[[EndpointHandle], None] = lambda _: None
        """Callback that starts a health check of an endpoint whose failures may have been caused by
        the requests. The check must end with a call of ``finish_suspect_check``."""

    def _update_single(self) -> None:
        members = self._cluster.members
        self._single = members[0] if len(members) == 1 else None
        self.has_several = self._single is None
        """Whether there are several endpoints, in which case a sequence must stay on one."""

    # ---- choosing

    def choose(self, tried: Collection[EndpointHandle] = (), key: str = "") -> EndpointHandle:
        """Return the best endpoint for the next attempt. Endpoints in ``tried`` are returned only
        if there is no other endpoint.

        The only endpoint of a backend is returned again, so that a request is retried if the
        endpoint refuses connections while it restarts.
        """
        single = self._single
        if single is not None:
            single.active += 1
            return single
        return self._cluster.choose(self._clock(), tried, key)

    def sequence_owner(self, sequence: SequenceKey) -> EndpointHandle:
        """Return the owner of ``sequence``, regardless of its health (docs/decisions/0013)."""
        return self._cluster.choose_owner(sequence)

    def all_handles(self) -> Sequence[EndpointHandle]:
        """Return all endpoints in the order of the configuration. Callers must call
        ``begin_attempt`` before sending to an endpoint."""
        return [handle for handles in self._handles for handle in handles]

    def describe_position(self, handle: EndpointHandle) -> str:
        """Return the endpoint's position in the configuration, for error texts. Clients must not
        see addresses."""
        return f"endpoint {handle.configured_index + 1} of {len(self.configured)}"

    # ---- outcomes and health

    def finish_attempt(self, handle: EndpointHandle, outcome: AttemptOutcome) -> None:
        now = self._clock()
        if self._cluster.record_outcome(handle, outcome, now):
            self._log_ejection(handle, now)
        elif not handle.is_suspected and self._cluster.is_suspect(handle, now):
            handle.is_suspected = True
            self.on_suspected(handle)

    def record_known_model(self, model: str) -> None:
        """Record that an endpoint has served ``model``."""
        if len(self.known_models) < _MAX_KNOWN_MODELS:
            self.known_models.add(model)

    def finish_suspect_check(self, handle: EndpointHandle, *, is_healthy: bool) -> None:
        """Record the result of checking a suspected endpoint."""
        now = self._clock()
        handle.is_suspected = False
        if is_healthy:
            handle.outlier.consecutive_failures = 0
        elif self._cluster.eject_suspect(handle, now, by_check=True):
            self._log_ejection(handle, now)

    def _log_ejection(self, handle: EndpointHandle, now: float) -> None:
        _log.warning(
            "backend '%s': %s is ejected for %.0f s after %d consecutive failures",
            self._backend,
            handle.endpoint,
            handle.outlier.ejected_until - now,
            self.settings.cluster_rule.outliers.consecutive,
            extra=ENDPOINT_EJECTED,
        )

    def record_check(self, handle: EndpointHandle, *, is_healthy: bool) -> None:
        if is_healthy:
            handle.checks_ok += 1
        else:
            handle.checks_failed += 1
        if self._cluster.record_check(handle, self._clock(), succeeded=is_healthy):
            state = "up: its health checks pass" if is_healthy else "down: its health checks fail"
            _log.warning(
                "backend '%s': %s is %s",
                self._backend,
                handle.endpoint,
                state,
                extra=ENDPOINT_UP if is_healthy else ENDPOINT_DOWN,
            )

    @property
    def is_ready(self) -> bool | None:
        """Whether any endpoint is up, or None if that is unknown because health checks are disabled
        or have not covered all endpoints."""
        checked = [
            member.health.is_up for member in self._cluster.members if member.health.was_checked
        ]
        if any(checked):
            return True
        return None if len(checked) < len(self._cluster.members) else False

    # ---- addresses of names

    def set_addresses(self, index: int, addresses: Collection[str]) -> None:
        """Set the addresses of a DNS name. An empty collection counts as a failed lookup."""
        if not addresses:
            self._failed_lookups[index] += 1
            return
        configured = self.configured[index].endpoint
        self._set_endpoints(
            index, [configured._replace(address=address) for address in sorted(set(addresses))]
        )

    def set_watched_addresses(self, index: int, addresses: Sequence[tuple[str, int]]) -> None:
        """Set the distinct addresses and ports of a watched name (rule 3)."""
        configured = self.configured[index].endpoint
        endpoints = [configured._replace(address=host, port=port) for host, port in addresses]
        self._set_endpoints(index, endpoints or [configured])

    def record_watch(self, index: int, *, is_current: bool) -> None:
        """Record whether the watch of a name is up to date."""
        failures, _ = self._watches.get(index, (0, True))
        self._watches[index] = failures + (not is_current), is_current

    def _set_endpoints(self, index: int, endpoints: Sequence[Endpoint]) -> None:
        previous = {handle.endpoint: handle for handle in self._handles[index]}
        if list(previous) == endpoints:
            return
        handles: list[EndpointHandle] = []
        for address in endpoints:
            handle = previous.pop(address, None) or self._draining.pop((index, address), None)
            handles.append(handle or EndpointHandle(self, address, index))
        self._handles[index] = handles
        self._draining.update({(index, endpoint): handle for endpoint, handle in previous.items()})
        self._cluster.replace_members(
            self.all_handles(), self._clock(), slow_start=index in self._resolved_indices
        )
        self._update_single()
        if index in self._resolved_indices:
            _log.info(
                "backend '%s': %s now has %d addresses",
                self._backend,
                self.configured[index].label,
                len(endpoints),
                extra=ADDRESSES_CHANGED,
            )
        self._resolved_indices.add(index)

    def pop_drained(self) -> Sequence[Endpoint]:
        """Return the removed endpoints whose last attempt has ended. The caller closes their
        connections. Each endpoint is returned only once."""
        drained = {key: handle for key, handle in self._draining.items() if not handle.active}
        for key, handle in drained.items():
            del self._draining[key]
            self._removed_stats[handle.configured_index] = _add_handle(
                self._removed_stats[handle.configured_index], handle
            )
        in_use = {handle.endpoint for handle in (*self.all_handles(), *self._draining.values())}
        return [
            endpoint
            for endpoint in dict.fromkeys(endpoint for _, endpoint in drained)
            if endpoint not in in_use
        ]

    # ---- statistics

    def stats(self) -> Sequence[EndpointStats]:
        """Return the statistics of each configured endpoint."""
        now = self._clock()
        totals = list(self._removed_stats)
        for handle in (*self.all_handles(), *self._draining.values()):
            totals[handle.configured_index] = _add_handle(totals[handle.configured_index], handle)
        for index, handles in enumerate(self._handles):
            down = sum(not handle.health.is_up for handle in handles)
            ejected = sum(
                handle.health.is_up and handle.outlier.ejected_until > now for handle in handles
            )
            totals[index] = totals[index]._replace(
                available=len(handles) - down - ejected,
                down=down,
                ejected=ejected,
                lookups_failed=self._failed_lookups[index],
            )
        for index, (failures, is_current) in self._watches.items():
            totals[index] = totals[index]._replace(
                watches_current=int(is_current),
                watches_failing=int(not is_current),
                watch_failures=failures,
            )
        return totals


def _add_handle(totals: EndpointStats, handle: EndpointHandle) -> EndpointStats:
    return totals._replace(
        active=totals.active + handle.active,
        ok=totals.ok + handle.successes,
        failed=totals.failed + handle.failures,
        ejections=totals.ejections + handle.outlier.ejection_count,
        checks_ok=totals.checks_ok + handle.checks_ok,
        checks_failed=totals.checks_failed + handle.checks_failed,
    )


POLICIES: Final[dict[str, Callable[[RandomSource], BalancingPolicy[EndpointHandle]]]] = {
    "least-request": LeastRequest,
    "round-robin": RoundRobin,
}
