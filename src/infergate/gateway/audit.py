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
from infergate.core.messages import (
    OPERATIONS,
    Operation,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.vocabulary import AUDIT, telling

T = TypeVar("T")
_log = logging.getLogger("infergate.audit")
_LONGEST: Final = 256
"""Characters of a client's text in a log line."""


async def audited(operation: Operation, call: Call, doing: Awaitable[T]) -> T:
    """Await ``execution``, which carries out ``operation``, then log the outcome; return its result
    or raise its error."""
    outcome = "ok"
    try:
        return await doing
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
        _tell(OPERATIONS[type(operation)], _subject(operation), call, outcome)


def denied(operation: type[Operation], call: Call, error: GatewayError) -> None:
    """Log that an ``operation`` was not authorized. Only ``call`` describes it: it was not
    parsed."""
    _tell(OPERATIONS[operation], f"model={call.model[:_LONGEST]!r}", call, error.kind.value)


def _tell(operation: str, subject: str, call: Call, outcome: str) -> None:
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
        extra=telling(
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
            location = f"key={key[:_LONGEST]!r} offset={offset}" if device is None else f"{device=}"
            return f"region={name[:_LONGEST]!r} {location} size={size}"
        case SharedMemoryUnregisterRequest(name):
            return f"region={name[:_LONGEST]!r}"
    return f"model={getattr(operation, 'model', '')[:_LONGEST]!r}"
