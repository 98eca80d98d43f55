"""The facts about one request that the access log, the metrics and the statistics report."""

from __future__ import annotations

import time
from typing import Any

from infergate.core.errors import GatewayError


class RequestRecord:
    """The facts about one request that are logged and counted when it ends.

    The transport records the size and times; the frontend records the protocol, operation, model
    and outcome; the route binding records the route and backend; the backend records its time."""

    def __init__(  # noqa: PLR0913, PLR0917 - mypyc does not compile a dataclass's own
        self,
        protocol: str = "",
        operation: str = "",
        model: str = "",
        route: str = "",
        backend: str = "",
        backend_protocol: str = "",
        pipeline: str = "",
        outcome: str = "ok",
        error: str = "",
        detail: str = "",
        exceeded_limit: str = "",
        response_count: int | None = None,
        bytes_in: int = 0,
        bytes_out: int = 0,
        started_at: float | None = None,
        received_at: float = 0.0,
        backend_seconds: float = 0.0,
        cache: str = "",
        backend_started_at: float = 0.0,
        queue_seconds: float = 0.0,
        connect_seconds: float = 0.0,
        message: Any = None,
    ) -> None:
        self.protocol = protocol
        self.operation = operation
        self.model = model
        self.route = route
        self.backend = backend
        self.backend_protocol = backend_protocol
        self.pipeline = pipeline
        """``forward`` if the message passes through, or ``translate``."""
        self.outcome = outcome
        """``ok``, or the kind of the error."""
        self.error = error
        self.detail = detail
        self.exceeded_limit = exceeded_limit
        """The name of the limit that the rejected request exceeded."""
        self.response_count = response_count
        """For a stream, the number of responses so far."""
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.started_at = time.monotonic() if started_at is None else started_at
        """The time when the request began to arrive, on the clock of ``time.monotonic``."""
        self.received_at = received_at
        """The time when the request was received completely. It is 0.0 while the request is
        incomplete."""
        self.backend_seconds = backend_seconds
        self.cache = cache
        """``hit``, ``miss``, ``collapsed`` or ``bypass`` on a route with a response cache."""
        self.backend_started_at = backend_started_at
        """The time when the first request to the backend began, on the clock of ``time.monotonic``.
        It is 0.0 if the backend got no request."""
        self.queue_seconds = queue_seconds
        """The part of ``backend_seconds`` spent in the backend's queue."""
        self.connect_seconds = connect_seconds
        """The part of ``backend_seconds`` spent waiting for connections to the backend."""
        self.message = message
        """The client's request while it is served, without the time of a streamed response. The
        dispatcher sets it."""

    def record_error(self, error: GatewayError) -> None:
        """Record ``error`` as the outcome, and make its public text name the exceeded limit."""
        error.append_limit_key()
        self.outcome = error.kind.value
        self.error = error.public
        self.detail = error.detail
        self.exceeded_limit = error.limit
