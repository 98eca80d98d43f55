"""The state of one request, except the bytes of its message."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Protocol

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.hops import has_hops
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.request_record import RequestRecord
from infergate.core.route_policy import DEFAULT_ROUTE_POLICY, RoutePolicy
from infergate.core.wire import NO_HEADERS

REQUEST_ID_HEADER: Final = "x-request-id"
"""The header with the request id. The gateway sends it to backends, and to the client with an
error."""
ANONYMOUS: Final = "anonymous"
"""The identity of clients without credentials, if access rules admit such clients."""
CLOCK_TOLERANCE: Final = 0.05
"""A wait may end this many seconds before its deadline, because event loops round their clocks."""


class Permit(Protocol):
    """An authenticated client and its permissions."""

    identity: str
    """The name of the client in rules and logs."""
    weight: float
    """The client's weight in fair queues."""
    highest_priority: int
    """The highest priority that the client's requests may have; 1 is the highest of all."""

    def allows(self, operation: type, model: str) -> bool:
        """Return whether the client may perform ``operation``, a class of ``core.messages``, on
        ``model``; an empty ``model`` means the server."""
        ...


class TraceContext(Protocol):
    """The trace that a request belongs to."""

    @property
    def id(self) -> str:
        """The trace id of 32 hexadecimal digits. It is empty for a trace that is not sampled."""
        ...


class RequestContext:
    """A request in progress. The transport creates it.

    ``deadline`` is in seconds on the clock of ``time.monotonic``, or None if neither the client nor
    the gateway has set a deadline. ``headers`` are the client's HTTP headers or gRPC metadata, with
    lower-case names. ``peer_identity`` are the subjectAltNames of the client certificate verified
    by TLS: first URIs (SPIFFE), then DNS names, e-mail addresses and IP addresses. It is empty if
    the client presented no certificate."""

    def __init__(  # noqa: PLR0913, PLR0917 - mypyc does not compile a dataclass's __init__
        self,
        peer: str,
        deadline: float | None = None,
        stream_deadline: float | None = None,
        policy: RoutePolicy = DEFAULT_ROUTE_POLICY,
        headers: Mapping[str, str] = NO_HEADERS,
        peer_identity: tuple[str, ...] = (),
        request_id: str = "",
        memory: MemoryAccount = UNLIMITED,
        record: RequestRecord | None = None,
    ) -> None:
        self.peer = peer
        self.deadline = deadline
        self.stream_deadline = stream_deadline
        """For a request with a stream of responses, the client's deadline for the complete stream.
        ``deadline`` then applies to the next message."""
        self.policy = policy
        """The settings of the request's route, set when the route is found."""
        self.headers = headers
        self.peer_identity = peer_identity
        self.unsupported_datatypes: frozenset[Datatype] = frozenset()
        """Datatypes that the client's protocol cannot carry."""
        self.permit: Permit | None = None
        """The authenticated client. It is None if the client is not authenticated."""
        self.trace: TraceContext | None = None
        """The trace of the request. It is None if the request is not traced."""
        self.request_id = request_id
        self.priority = 0
        """The priority in the client's message, or 0. It is read only if the backend has a
        queue."""
        self.abort_error: GatewayError | None = None
        """The error that the client receives if the gateway aborts the request while it is in
        progress. The gateway sets it and cancels the request."""
        self.memory = memory
        """The request's share of the memory budget. By default, nothing is charged."""
        self.response_headers: Mapping[str, str] = NO_HEADERS
        """Headers of the backend's response that are returned to the client."""
        self.record = RequestRecord() if record is None else record
        """The facts that are logged and counted."""

    @property
    def identity(self) -> str:
        """The client's name in rules and logs. It is empty if the client was not authenticated."""
        return "" if self.permit is None else self.permit.identity

    def record_error(self, error: GatewayError) -> None:
        """Record ``error`` as the outcome. A loop is recorded as TOO_MANY_HOPS if the client sent a
        hop count, because a client can send any count."""
        self.record.record_error(error)
        if error.kind is Kind.LOOP_DETECTED and has_hops(self.headers):
            self.record.outcome = Kind.TOO_MANY_HOPS.value

    def child(self) -> RequestContext:
        """Return the context of another request for the same client: a request of a stream, a
        mirrored copy, or a query that the gateway sends.

        The child shares the client, headers, trace and memory of this request, and starts with the
        same deadline. It has its own response headers, and its own record, so its outcome is not
        logged as the outcome of this request. The child's record starts with the same protocol,
        operation, model and route."""
        record = self.record
        child = RequestContext(
            self.peer,
            self.deadline,
            self.stream_deadline,
            self.policy,
            self.headers,
            self.peer_identity,
            self.request_id,
            self.memory,
            RequestRecord(record.protocol, record.operation, record.model, record.route),
        )
        child.unsupported_datatypes = self.unsupported_datatypes
        child.permit, child.trace = self.permit, self.trace
        return child

    def shorten_deadline(self, deadline: float) -> None:
        """Set the deadline unless the current deadline is earlier."""
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline

    def remaining_seconds(self, maximum: float) -> float:
        """Return the seconds until the deadline, but at most ``maximum``."""
        deadline = self.deadline
        return maximum if deadline is None else min(maximum, deadline - time.monotonic())

    def renew_deadline(self) -> None:
        """Set the deadline of a stream's next message: the route's timeout from now, but no later
        than the deadline of the stream."""
        self.deadline = self.stream_deadline
        if self.policy.timeout is not None:
            self.shorten_deadline(time.monotonic() + self.policy.timeout)
