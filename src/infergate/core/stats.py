"""Statistics of endpoints, concurrency limits, listeners and the response cache, used by the
metrics and the console."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class EndpointStats(NamedTuple):
    """Statistics of a configured endpoint with the URL ``endpoint``.

    For a URL with a host name, the statistics are summed over all addresses of the host. Counts of
    requests, ejections, checks, lookups and failures are totals since the process started; counts
    of addresses, active requests and watches are current."""

    backend: str
    endpoint: str
    available: int = 0
    """Addresses that receive requests."""
    down: int = 0
    """Addresses whose health checks fail."""
    ejected: int = 0
    """Addresses ejected by outlier detection."""
    active: int = 0
    ok: int = 0
    failed: int = 0
    """Requests that failed because of the endpoint."""
    ejections: int = 0
    checks_ok: int = 0
    checks_failed: int = 0
    lookups_failed: int = 0
    """DNS lookups that returned no address."""
    watches_current: int = 0
    """1 if a watch of the endpoint's addresses is up to date."""
    watches_failing: int = 0
    """1 if a watch of the endpoint's addresses fails."""
    watch_failures: int | None = None
    """Failed attempts to watch the endpoint's addresses; None if they are not watched."""


class ConcurrencyStats(NamedTuple):
    """A backend's concurrency limit, and the number of inferences in progress."""

    backend: str
    in_use: int
    max_concurrent: int


class ListenerStats(Protocol):
    """Statistics of a listener."""

    closed_idle: int
    """Connections closed because they were idle for too long."""

    @property
    def listener(self) -> str:
        """The listener's name in the configuration."""
        ...

    @property
    def connections(self) -> int:
        """The number of open client connections."""
        ...

    @property
    def certificate_expiry(self) -> float | None:
        """The time when the certificate expires, in seconds since the Unix epoch. It is None
        without TLS."""
        ...


class CacheStats(NamedTuple):
    """The memory usage of the response cache: the number of entries, their size in bytes including
    all overhead, and the number of entries that this process evicted because the memory was
    full."""

    entries: int
    bytes: int
    evictions: int
