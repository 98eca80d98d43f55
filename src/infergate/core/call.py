"""What the gateway knows of one request besides its bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.memory import UNLIMITED, MemoryShare
from infergate.core.messages import ModelMetadata
from infergate.core.retrying import DEFAULT, RetryPolicy
from infergate.core.trace_context import TraceContext
from infergate.core.wire import NO_HEADERS

REQUEST_ID: Final = "x-request-id"
"""The header of a request's id, which goes upstream, and back to the client with an error."""
ANONYMOUS: Final = "anonymous"
"""The identity of all clients that show no credentials, where rules admit them."""
ROUNDING: Final = 0.05
"""Seconds by which a wait that used up the whole time may look shorter: loops round clocks."""


class Permit(Protocol):
    """Who asks, and what he may."""

    identity: str
    """How rules and logs call him."""

    def allows(self, operation: type, model: str) -> bool:
        """Whether he may ask for an ``operation``, a class of ``core.messages``; an empty
        ``model``: of the server."""
        ...


@dataclass(slots=True)
class Call:
    """One request on its way. The transport makes it; frontend and gateway note on it what the
    access log and the metrics will tell.

    ``deadline`` is on the clock of ``time.monotonic`` in seconds; None means that the client set
    none. ``headers`` are the client's headers or metadata, lower-case.
    """

    peer: str
    started: float
    deadline: float | None = None
    whole: float | None = None
    """Of a request that is answered by a stream: the deadline of all of it, as the client set it;
    ``deadline`` is that of its next message."""
    timeout: float | None = None
    """The route's, in seconds: it stands for the backend's own."""
    retry: RetryPolicy = DEFAULT
    """The route's."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    peer_identity: tuple[str, ...] = ()
    """The names (subjectAltName) of the certificate that the client proved to hold, once TLS has
    verified it: first URIs (SPIFFE), then DNS names, e-mail addresses and IP addresses. None where
    it showed none."""
    lacks: frozenset[Datatype] = frozenset()
    """Datatypes that the client's protocol cannot carry."""
    declared: ModelMetadata | None = None
    """What the operator wrote down of the model, in the backend's names: no need to ask."""
    permit: Permit | None = None
    """Of the client, where it matters who he is and he is known."""
    trace: TraceContext | None = None
    """Where requests are traced, that of this one."""
    request_id: str = ""
    protocol: str = ""
    operation: str = ""
    model: str = ""
    route: str = ""
    backend: str = ""
    backend_protocol: str = ""
    way: str = ""
    """``forward`` or ``translate``: how the request went."""
    outcome: str = "ok"
    """``ok``, or the kind of the error."""
    error: str = ""
    detail: str = ""
    limit: str = ""
    """The limit that the request met, where that is why it was refused."""
    messages: int | None = None
    """How many answers were given, where a stream of them is."""
    bytes_in: int = 0
    bytes_out: int = 0
    backend_seconds: float = 0.0
    received: float = 0.0
    """When it was here whole, on the clock of ``started``; 0.0 where it never was."""
    cut: GatewayError | None = None
    """Why the gateway gives it up while it is under way: it is cancelled, and its client told."""
    memory: MemoryShare = UNLIMITED
    """What the request holds of the memory budget; nothing is counted where no transport set it."""
    returned: dict[str, str] = field(default_factory=dict)
    """Headers of the backend's answer that go back to the client."""

    @property
    def identity(self) -> str:
        """Who asks; empty where nobody wanted to know, or it cannot be told."""
        return "" if self.permit is None else self.permit.identity

    def tighten(self, deadline: float) -> None:
        """Bring the deadline forward; never push it back."""
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline

    def renew(self) -> None:
        """A stream's next message has the time that the route gives each."""
        self.deadline = self.whole
        if self.timeout is not None:
            self.tighten(time.monotonic() + self.timeout)

    def fail(self, error: GatewayError) -> None:
        """Note what went wrong: the outcome that metrics count and the log tells. The error names
        the limit that was met, for whoever is told of it next."""
        error.name_limit()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.limit = error.limit
