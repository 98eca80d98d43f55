"""Names of headers that may hold credentials."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIAL: Final = re.compile(r"auth|cookie|key|token|secret|password|session", re.IGNORECASE)


def may_hold_credentials(name: str) -> bool:
    """Return whether a header called ``name`` may hold credentials."""
    return _CREDENTIAL.search(name) is not None
