"""The facts about one request that the access log, the metrics and the statistics report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from infergate.core.errors import GatewayError


@dataclass(slots=True)
class RequestRecord:
    """The facts about one request that are logged and counted when it ends.

    The transport records the size and times; the frontend records the protocol, operation, model
    and outcome; the route binding records the route and backend; the backend records its time."""

    protocol: str = ""
    operation: str = ""
    model: str = ""
    route: str = ""
    backend: str = ""
    backend_protocol: str = ""
    pipeline: str = ""
    """``forward`` if the message passes through, or ``translate``."""
    outcome: str = "ok"
    """``ok``, or the kind of the error."""
    error: str = ""
    detail: str = ""
    exceeded_limit: str = ""
    """The name of the limit that the rejected request exceeded."""
    response_count: int | None = None
    """For a stream, the number of responses so far."""
    bytes_in: int = 0
    bytes_out: int = 0
    started_at: float = field(default_factory=time.monotonic)
    """The time when the request began to arrive, on the clock of ``time.monotonic``."""
    received_at: float = 0.0
    """The time when the request was received completely. It is 0.0 while the request is
    incomplete."""
    backend_seconds: float = 0.0
    cache: str = ""
    """``hit``, ``miss``, ``collapsed`` or ``bypass`` on a route with a response cache."""
    backend_started_at: float = 0.0
    """The time when the first request to the backend began, on the clock of ``time.monotonic``. It
    is 0.0 if the backend got no request."""
    queue_seconds: float = 0.0
    """The part of ``backend_seconds`` spent in the backend's queue."""
    connect_seconds: float = 0.0
    """The part of ``backend_seconds`` spent waiting for connections to the backend."""
    message: Any = None
    """The client's request while it is served, without the time of a streamed response. The
    dispatcher sets it."""

    def record_error(self, error: GatewayError) -> None:
        """Record ``error`` as the outcome, and make its public text name the exceeded limit."""
        error.append_limit_key()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.exceeded_limit = error.limit
