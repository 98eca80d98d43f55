"""The exchange of one relayed request. Callbacks drive the first attempt.

Most requests get a response to the first attempt and need no task. If a request must wait for a
connection, or is retried because it was not sent, ``RequestSender`` continues in a task from the
state of this object (docs/decisions/0048).
"""

from __future__ import annotations

import enum
import time
from typing import Any, Generic, TypeVar

from infergate.backends.attempts import BegunExchange
from infergate.backends.base import add_backend_name
from infergate.backends.endpoints import AttemptOutcome, EndpointHandle
from infergate.backends.request_preparation import RequestPreparation
from infergate.backends.request_sender import RequestSender
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.transport.base import Cancellable

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class RelayState(enum.Enum):
    """The state of a relayed request."""

    LOCAL = enum.auto()
    """No exchange is in progress. The gateway processes the request or the backend's response, or
    waits for the start of a task that will process it."""
    EXCHANGING = enum.auto()
    """The exchange is in progress: it has a slot of the queue, if the backend has a queue, and is
    counted in the retry budget. If the exchange needs a task, the task has not started yet."""
    IN_TASK = enum.auto()
    """A task serves the request, and ends the exchange."""
    OVER = enum.auto()


class RelayedExchange(Generic[Req, Resp]):
    """The exchange of a relayed request with its backend. A subclass handles the result."""

    __slots__ = (
        "context",
        "error",
        "exchange",
        "handle",
        "request",
        "sender",
        "started_at",
        "state",
    )

    sender: RequestSender[Req, Resp]
    request: Req
    handle: EndpointHandle
    started_at: float

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.state = RelayState.LOCAL
        self.exchange: Cancellable | None = None
        """The first attempt, while it is in progress."""
        self.error: GatewayError | None = None
        """The error of the first attempt, if the request is retried."""

    # ---- to be implemented by subclasses

    def _on_backend_response(self, response: Resp) -> None:
        """Handle the response. Never raises."""
        raise NotImplementedError

    def _on_backend_error(self, error: Exception) -> None:
        """Handle the error of the exchange. Never raises."""
        raise NotImplementedError

    def _continue_exchange(self) -> None:
        """Await ``_resume_exchange`` in a task."""
        raise NotImplementedError

    # ---- sending

    def _start_exchange(self, sender: RequestSender[Req, Resp], request: Any) -> None:
        """Send ``request`` to an endpoint. If the backend has a queue, the caller has taken a slot,
        which an error releases. Raises GatewayError."""
        context = self.context
        started = self.started_at = time.monotonic()
        try:
            preparation: RequestPreparation = sender.preparation
            deadline = preparation.set_deadline(context, started)
            preparation.prepare(request, context)
            hash_key = sender.hash_key
            if hash_key is None:
                handle = sender.endpoints.choose()
            else:
                handle = sender.endpoints.choose((), hash_key(context))
        except BaseException:
            if sender.queue is not None:
                sender.queue.leave()
            raise
        self.sender, self.request, self.handle = sender, request, handle
        sender.retry_budget.active_requests += 1
        self.state = RelayState.EXCHANGING
        assert sender.begin is not None
        self.exchange = sender.begin(request, handle.endpoint, deadline - started, self)
        if self.exchange is None:
            self._continue_exchange()

    # ---- called by the upstream

    def on_response(self, response: Resp) -> None:
        """Record the attempt and handle the response."""
        sender, context = self.sender, self.context
        access = sender.access
        self.exchange = None
        if (
            access.response_status(response) not in access.unavailable_statuses
            and context.record.model in sender.endpoints.known_models
        ):  # almost every response has this outcome
            self.handle.record_success()
        else:
            self.handle.finish_attempt(sender.response_outcome(response, context))
        self._finish_exchange()
        if sender.returns_headers and access.response_headers(response):
            sender.collect_headers(response, context)
        self._on_backend_response(response)

    def on_error(self, error: Exception) -> None:
        """Record the attempt. Retry the request if it was not sent, and otherwise handle the
        error."""
        sender, context = self.sender, self.context
        self.exchange = None
        outcome = AttemptOutcome.UNKNOWN
        if isinstance(error, GatewayError):
            outcome = sender.error_outcome(error, time.monotonic() - self.started_at, context)
        self.handle.finish_attempt(outcome)
        if isinstance(error, GatewayError) and error.kind is Kind.CONNECT:
            self.error = error
            self._continue_exchange()
            return
        self._finish_exchange()
        if isinstance(error, GatewayError):
            error = add_backend_name(error, sender.backend)
        self._on_backend_error(error)

    def _finish_exchange(self) -> None:
        sender = self.sender
        self.state = RelayState.LOCAL
        sender.retry_budget.active_requests -= 1
        record = self.context.record
        record.backend_started_at = self.started_at
        record.backend_seconds += time.monotonic() - self.started_at
        if sender.queue is not None:
            sender.queue.leave()

    async def _resume_exchange(self) -> Resp:
        """Finish an exchange that needs a task. Raises the errors of the exchange."""
        sender, error = self.sender, self.error
        self.error = None
        begun = BegunExchange(self.started_at, self.handle, error)
        del error  # the error's traceback will refer to this frame
        try:
            return await sender.exchange(self.request, self.context, begun=begun)
        finally:
            del begun
            if sender.queue is not None:
                sender.queue.leave()

    def _cancel_exchange(self) -> None:
        """Cancel the attempt in progress, or the exchange that waits for its task to start."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.cancel()
        if self.error is None:  # an attempt with an error has already been recorded
            self.handle.finish_attempt(AttemptOutcome.UNKNOWN)
        self.error = None  # the error's traceback may refer to this object
        self._finish_exchange()
