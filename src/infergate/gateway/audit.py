"""Writes the log ``infergate.audit``. Each operation that changes the state of the gateway or of a
backend, or reads the settings of servers, is logged in one line with the client, the operation,
the backend and the outcome, even if it fails. Text from clients is quoted and truncated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

from infergate.core.errors import GatewayError, Kind
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.messages import (
    OPERATION_NAMES,
    Operation,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.request_context import RequestContext

T = TypeVar("T")
_log = logging.getLogger("infergate.audit")
_MAX_TEXT_CHARS: Final = 256
"""Maximum length of a client's text in a log line."""


async def audit(operation: Operation, context: RequestContext, execution: Awaitable[T]) -> T:
    """Await ``execution``, which performs ``operation``, and log the outcome. Return the result of
    ``execution`` or raise its error."""
    outcome = "ok"
    try:
        return await execution
    except GatewayError as error:
        outcome = error.kind.value
        raise
    except asyncio.CancelledError:
        outcome = Kind.CANCELLED.value
        raise
    except BaseException:
        outcome = Kind.INTERNAL.value
        raise
    finally:
        _log_operation(OPERATION_NAMES[type(operation)], _subject(operation), context, outcome)


def log_denied(operation: type[Operation], context: RequestContext, error: GatewayError) -> None:
    """Log that ``operation`` was rejected with ``error``."""
    subject = f"model={context.record.model[:_MAX_TEXT_CHARS]!r}"
    _log_operation(OPERATION_NAMES[operation], subject, context, error.kind.value)


def _log_operation(operation: str, subject: str, context: RequestContext, outcome: str) -> None:
    fields = {
        "operation": operation,
        "subject": subject,
        "route": context.record.route,
        "backend": context.record.backend,
        "peer": context.peer,
        "request_id": context.request_id,
        "outcome": outcome,
        "identity": context.identity,
    }
    text = (
        "%(operation)s %(subject)s route=%(route)r backend=%(backend)r peer=%(peer)s "
        "request_id=%(request_id)r outcome=%(outcome)s"
    )
    if context.identity:
        text += " identity=%(identity)r"
    _log.info(text, fields, extra=with_fields(AUDIT, **fields))


def _subject(operation: Operation) -> str:
    match operation:
        case SharedMemoryRegisterRequest(name, key, offset, size, device):
            location = (
                f"key={key[:_MAX_TEXT_CHARS]!r} offset={offset}" if device is None else f"{device=}"
            )
            return f"region={name[:_MAX_TEXT_CHARS]!r} {location} size={size}"
        case SharedMemoryUnregisterRequest(name):
            return f"region={name[:_MAX_TEXT_CHARS]!r}"
    return f"model={getattr(operation, 'model', '')[:_MAX_TEXT_CHARS]!r}"
