"""Converts a bug into the failure of one request. The client receives an error without details, and
the log contains the traceback."""

from __future__ import annotations

import logging
from typing import Final

from infergate.core import errors
from infergate.core.errors import GatewayError
from infergate.core.log_events import BUG

_log: Final = logging.getLogger(__name__)


def internal_error(activity: str, error: BaseException | None = None) -> GatewayError:
    """Log ``error``, which interrupted ``activity``, and return the error for the client. The
    default of ``error`` is the exception that is being handled."""
    _log.error("internal error while %s", activity, exc_info=error or True, extra=BUG)
    return errors.internal_error()
