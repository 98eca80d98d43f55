"""The log ``infergate.audit``: which client requested which change of which backend, and its
outcome.

Each operation gets one line, whatever its outcome. Text from clients is quoted and truncated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.messages import (
    OPERATION_NAMES,
    Operation,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)

T = TypeVar("T")
_log = logging.getLogger("infergate.audit")
_MAX_TEXT_CHARS: Final = 256
"""Characters of a client's text in a log line."""


async def audit(operation: Operation, call: Call, execution: Awaitable[T]) -> T:
    """Await ``execution``, which carries out ``operation``, then log the outcome; return its result
    or raise its error."""
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
        _log_operation(OPERATION_NAMES[type(operation)], _subject(operation), call, outcome)


def log_denied(operation: type[Operation], call: Call, error: GatewayError) -> None:
    """Log that an ``operation`` was not authorized. Only ``call`` describes it: it was not
    parsed."""
    _log_operation(
        OPERATION_NAMES[operation],
        f"model={call.model[:_MAX_TEXT_CHARS]!r}",
        call,
        error.kind.value,
    )


def _log_operation(operation: str, subject: str, call: Call, outcome: str) -> None:
    _log.info(
        "%s %s route=%r backend=%r peer=%s request_id=%r outcome=%s%s",
        operation,
        subject,
        call.route,
        call.backend,
        call.peer,
        call.request_id,
        outcome,
        f" identity={call.identity!r}" if call.identity else "",
        extra=with_fields(
            AUDIT,
            operation=operation,
            subject=subject,
            route=call.route,
            backend=call.backend,
            peer=call.peer,
            request_id=call.request_id,
            outcome=outcome,
            identity=call.identity,
        ),
    )


def _subject(operation: Operation) -> str:
    """Describe what is to be changed. An empty name means all."""
    match operation:
        case SharedMemoryRegisterRequest(name, key, offset, size, device):
            location = (
                f"key={key[:_MAX_TEXT_CHARS]!r} offset={offset}" if device is None else f"{device=}"
            )
            return f"region={name[:_MAX_TEXT_CHARS]!r} {location} size={size}"
        case SharedMemoryUnregisterRequest(name):
            return f"region={name[:_MAX_TEXT_CHARS]!r}"
    return f"model={getattr(operation, 'model', '')[:_MAX_TEXT_CHARS]!r}"
