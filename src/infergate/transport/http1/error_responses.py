"""Builds the responses to rejected requests and to failures of the application."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Final

from infergate.core.errors import GatewayError, internal_error
from infergate.core.log_events import BUG
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import HttpApp
from infergate.transport.http1.message_head import HeadError

log = logging.getLogger(__name__)

_NO_FAILURE: Final = Exception()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def response_to_failure(
    failure: BaseException, app: HttpApp, wire: HttpRequest, context: RequestContext
) -> HttpResponse:
    """Return the response to a ``failure`` of the application. Re-raises ``failure`` if it is a
    CancelledError and the current task is being cancelled."""
    if isinstance(failure, asyncio.CancelledError) and _is_being_cancelled():
        try:
            raise failure
        finally:
            # The error's traceback keeps frames, and thus messages, alive.
            failure = _NO_FAILURE
    if isinstance(failure, GatewayError):
        return rejection(app, failure, wire, context)
    log.error("handling %s %s failed", wire.method, wire.path, exc_info=failure, extra=BUG)
    return rejection(app, internal_error(), wire, context)


def rejection(
    app: HttpApp, error: GatewayError, wire: HttpRequest, context: RequestContext
) -> HttpResponse:
    """Return the application's response to ``error``. The status of a ``HeadError`` replaces the
    application's status."""
    try:
        response = app.refuse(error, dataclasses.replace(wire, body=()), context)
    except Exception:
        log.exception(
            "building the error response to %s %s failed", wire.method, wire.path, extra=BUG
        )
        response = HttpResponse(500)
    if isinstance(error, HeadError):
        return dataclasses.replace(response, status=error.status)
    return response
