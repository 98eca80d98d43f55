"""The state of one request apart from its bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.messages import ModelMetadata
from infergate.core.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from infergate.core.trace_context import TraceContext
from infergate.core.wire import NO_HEADERS

REQUEST_ID_HEADER: Final = "x-request-id"
"""The header with the request id. It is sent to backends, and back to the client with an error."""
ANONYMOUS: Final = "anonymous"
"""The identity of clients without credentials, where rules admit them."""
CLOCK_TOLERANCE: Final = 0.05
"""Seconds by which a wait until the deadline may appear too short: event loops round their
clocks."""


class Permit(Protocol):
    """An authenticated client and its permissions."""

    identity: str
    """The name of the client in rules and logs."""

    def allows(self, operation: type, model: str) -> bool:
        """Return whether the client may request ``operation``, a class of ``core.messages``, on
        ``model``; an empty ``model`` means the server."""
        ...


@dataclass(slots=True)
class RequestContext:
    """One request in progress. The transport creates it; the frontend and the gateway record on it
    what the access log and the metrics report.

    ``deadline`` is in seconds on the clock of ``time.monotonic``; None if the client set none.
    ``headers`` are the client's HTTP headers or gRPC metadata, with lower-case names.
    """

    peer: str
    started_at: float
    deadline: float | None = None
    stream_deadline: float | None = None
    """For a request that is answered by a stream: the deadline of the whole stream, as the client
    set it. ``deadline`` is then that of the next message."""
    route_timeout: float | None = None
    """The route's timeout in seconds, which replaces the backend's."""
    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    """The route's retry policy."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    peer_identity: tuple[str, ...] = ()
    """The subjectAltNames of the client certificate that TLS has verified: first URIs (SPIFFE),
    then DNS names, e-mail addresses and IP addresses. Empty if the client showed no certificate."""
    unsupported_datatypes: frozenset[Datatype] = frozenset()
    """Datatypes that the client's protocol cannot carry."""
    declared_metadata: ModelMetadata | None = None
    """The model's metadata from the configuration, with the backend's names. If it is set, the
    backend is not asked for metadata."""
    permit: Permit | None = None
    """The authenticated client; None if the route needs no authentication or the client is
    unknown."""
    trace: TraceContext | None = None
    """Set while the request is traced."""
    request_id: str = ""
    protocol: str = ""
    operation: str = ""
    model: str = ""
    route: str = ""
    backend: str = ""
    backend_protocol: str = ""
    pipeline: str = ""
    """``forward`` (passed through) or ``translate``."""
    outcome: str = "ok"
    """``ok``, or the kind of the error."""
    error: str = ""
    detail: str = ""
    exceeded_limit: str = ""
    """The name of the limit because of which the request was rejected."""
    response_count: int | None = None
    """The number of responses so far, for a stream."""
    bytes_in: int = 0
    bytes_out: int = 0
    backend_seconds: float = 0.0
    received_at: float = 0.0
    """When the request had been received completely, on the clock of ``started_at``; 0.0 if it
    never was."""
    abort_error: GatewayError | None = None
    """Set when the gateway aborts the request while it is in progress: the request is cancelled,
    and the client gets this error."""
    memory: MemoryAccount = UNLIMITED
    """The request's share of the memory budget. Nothing is charged if the transport has not set
    it."""
    response_headers: dict[str, str] = field(default_factory=dict)
    """Headers of the backend's response that are returned to the client."""

    @property
    def identity(self) -> str:
        """The client's name in rules and logs; empty if it was not authenticated."""
        return "" if self.permit is None else self.permit.identity

    def shorten_deadline(self, deadline: float) -> None:
        """Set the deadline unless the current one is earlier."""
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline

    def renew_deadline(self) -> None:
        """Set the deadline of a stream's next message: the route's timeout from now, but no later
        than the deadline of the stream."""
        self.deadline = self.stream_deadline
        if self.route_timeout is not None:
            self.shorten_deadline(time.monotonic() + self.route_timeout)

    def record_error(self, error: GatewayError) -> None:
        """Record ``error`` as the outcome for metrics and the log, and make its public text name
        the exceeded limit."""
        error.append_limit_key()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.exceeded_limit = error.limit
