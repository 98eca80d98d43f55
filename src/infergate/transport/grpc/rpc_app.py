"""Helpers for gRPC servers that call an ``RpcApp``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from infergate.core.errors import GatewayError
from infergate.core.log_events import BUG
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import RpcApp, StreamHandler
from infergate.transport.grpc.headers import INTERNAL
from infergate.transport.grpc.multiplexing import multiplex
from infergate.transport.server.admission import Admission

log = logging.getLogger(__name__)


def stream_handler(app: RpcApp, method: str, admission: Admission) -> StreamHandler | None:
    """Return the handler of a streaming method, or None if the method is unary or unknown."""
    open_stream = app.request_streams.get(method)
    if open_stream is None:
        return app.streams.get(method)

    def respond(
        messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        return multiplex(open_stream(context), messages, admission)

    return respond


def build_refusal(
    app: RpcApp, error: GatewayError, method: str, context: RequestContext
) -> RpcResponse:
    """Return the application's response to ``error``. The application records the error."""
    try:
        return app.refuse(error, RpcRequest(method, metadata=context.headers), context)
    except Exception:
        log.exception("building the error response to %s failed", method, extra=BUG)
        return RpcResponse(code=INTERNAL, details="internal error")
