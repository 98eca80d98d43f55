"""The facts about one request that the access log, the metrics and the statistics report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from infergate.core.errors import GatewayError


@dataclass(slots=True)
class RequestRecord:
    """The facts about one request that are logged and counted when it ends.

    Each layer records its facts: the transport the size and times, the frontend the protocol,
    operation, model and outcome, the route binding the route and backend, the backend its time.
    """

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
    """The name of the limit that the rejected request exceeded."""
    response_count: int | None = None
    """The number of responses so far, for a stream."""
    bytes_in: int = 0
    bytes_out: int = 0
    started_at: float = field(default_factory=time.monotonic)
    """When the request began to arrive, on the clock of ``time.monotonic``."""
    received_at: float = 0.0
    """When the request had been received completely; 0.0 if it never was."""
    backend_seconds: float = 0.0

    def record_error(self, error: GatewayError) -> None:
        """Record ``error`` as the outcome, and make its public text name the exceeded limit."""
        error.append_limit_key()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.exceeded_limit = error.limit
