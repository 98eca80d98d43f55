"""The facts about one request that the access log, the metrics and the statistics report."""

from __future__ import annotations

import time
from typing import Any

from infergate.core.errors import GatewayError


class RequestRecord:
    """The facts about one request that are logged and counted when the request ends.

    The transport records the size and times; the frontend records the protocol, operation, model
    and outcome; the route binding records the route and backend; the backend records its time."""

    def __init__(
        self, protocol: str = "", operation: str = "", model: str = "", route: str = ""
    ) -> None:
        self.protocol = protocol
        self.operation = operation
        self.model = model
        self.route = route
        self.backend = ""
        self.backend_protocol = ""
        self.pipeline = ""
        """``forward`` if the message passes through, or ``translate``."""
        self.outcome = "ok"
        """``ok``, or the kind of the error."""
        self.error = ""
        self.detail = ""
        self.exceeded_limit = ""
        """The name of the limit that the rejected request exceeded."""
        self.response_count: int | None = None
        """For a stream, the number of responses so far."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.started_at = time.monotonic()
        """The time when the request began to arrive, on the clock of ``time.monotonic``."""
        self.received_at = 0.0
        """The time when the request was received completely. It is 0.0 while the request is
        incomplete."""
        self.backend_seconds = 0.0
        self.cache = ""
        """``hit``, ``miss``, ``collapsed`` or ``bypass`` on a route with a response cache."""
        self.backend_started_at = 0.0
        """The time when the first exchange with a backend began, or began to wait in the backend's
        queue, on the clock of ``time.monotonic``. It is 0.0 if no exchange began to wait or to
        run."""
        self.queue_seconds = 0.0
        """The part of ``backend_seconds`` spent in the backend's queue."""
        self.connect_seconds = 0.0
        """The part of ``backend_seconds`` spent waiting for connections to the backend."""
        self.message: Any = None
        """The client's request. The dispatcher sets it on arrival, and removes it before a streamed
        response is sent."""

    def record_error(self, error: GatewayError) -> None:
        """Append the key of an exceeded limit to ``error.public``, and record ``error``."""
        error.append_limit_key()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.exceeded_limit = error.limit
