"""Names of headers, query parameters and options that may hold credentials."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIAL: Final = re.compile(
    r"auth|cookie|key|token|secret|session|jwt|credential|assertion|passw|passphrase|passcode"
    # Short words match only as whole words, because names such as x-compass contain them.
    r"|(?<![^\W_])(?:pass|pwd|cert|certificate|sig|signature)(?![^\W_])",
    re.IGNORECASE,
)


def may_hold_credentials(name: str) -> bool:
    """Return whether a header, query parameter or option called ``name`` may hold credentials."""
    return _CREDENTIAL.search(name) is not None
