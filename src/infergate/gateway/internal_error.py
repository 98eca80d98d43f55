"""Converts a bug into the failure of one request: an error message that reveals nothing to the
client, and a traceback in the log."""

from __future__ import annotations

import logging
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.log_events import BUG

_log: Final = logging.getLogger(__name__)


def internal_error(activity: str, error: BaseException | None = None) -> GatewayError:
    """Log ``error`` (by default, the exception being handled), which interrupted ``activity``, and
    return the error for the client."""
    _log.error("internal error while %s", activity, exc_info=error or True, extra=BUG)
    return GatewayError(Kind.INTERNAL, "internal error")
