"""Converts a bug into the failure of one request. The error message to the client has no details;
the log has the traceback."""

from __future__ import annotations

import logging
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.log_events import BUG

_log: Final = logging.getLogger(__name__)


def internal_error(activity: str, error: BaseException | None = None) -> GatewayError:
    """Log ``error``, which interrupted ``activity``, and return the error for the client. By
    default, ``error`` is the exception being handled."""
    _log.error("internal error while %s", activity, exc_info=error or True, extra=BUG)
    return GatewayError(Kind.INTERNAL, "internal error")
