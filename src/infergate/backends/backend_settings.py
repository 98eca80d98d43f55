"""The settings of a remote backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from infergate.backends.endpoint_monitor import AddressWatch, MonitoringSettings
from infergate.backends.endpoints import BalanceSettings, ConfiguredEndpoint
from infergate.backends.request_queue import RequestQueue
from infergate.codecs.base import Profile
from infergate.core.counters import BackendCounters
from infergate.core.limits import FORWARDED_HEADER_BYTES
from infergate.core.priorities import PRIORITY_HEADER
from infergate.core.request_context import RequestContext
from infergate.routing.budget import DEFAULT_MIN_RETRIES, DEFAULT_SHARE
from infergate.transport.base import Endpoint


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A backend's configuration. ``timeout``, in seconds, applies to routes without a timeout. If
    ``profile`` is None, the gateway detects it."""

    name: str
    endpoints: Sequence[Endpoint | ConfiguredEndpoint]
    timeout: float = 30.0
    profile: Profile | None = None
    forward_headers: Sequence[str] = ()
    return_headers: Sequence[str] = ()
    balancing: BalanceSettings = field(default_factory=BalanceSettings)
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)
    hash_key: Callable[[RequestContext], str] | None = None
    """Returns a request's hash key, which selects the request's endpoint, or an empty string if the
    request has no key. None disables hashing."""
    max_requests: int = 0
    """Maximum concurrent inferences. 0 means no limit."""
    max_queue: int = 0
    """Maximum inferences waiting in the queue."""
    priority_header: str = PRIORITY_HEADER
    """The lower-case name of the header with the priority of an inference in the queue."""
    retry_share: float = DEFAULT_SHARE
    """Maximum number of concurrent retries, as a fraction of the requests in progress."""
    min_retries: int = DEFAULT_MIN_RETRIES
    """Number of concurrent retries that are always allowed."""
    max_header_bytes: int = FORWARDED_HEADER_BYTES
    """Maximum bytes of forwarded headers."""
    watch: AddressWatch | None = None
    """For a backend with a single endpoint: watches the addresses of its host name."""

    def make_queue(self, counters: BackendCounters) -> RequestQueue | None:
        """Return the queue for inferences beyond ``max_requests``, or None if there is no limit."""
        if not self.max_requests:
            return None
        return RequestQueue(
            self.name, self.max_requests, self.max_queue, counters, self.priority_header
        )
