"""The header that stops forwarding loops: it counts the infergate gateways that a request has
passed (docs/decisions/0068)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.core.errors import GatewayError, Kind

HOPS_HEADER: Final = "infergate-hops"
FIRST_HOP: Final = "1"
"""The value that a gateway sends for a request without the header. Transports encode it once for
each connection."""
MAX_HOPS: Final = 8
"""Maximum number of gateways in a chain."""
LOOP_TEXT: Final = "forwarding loop: "
"""The start of the error's text, by which a gateway recognizes the error of another gateway."""
_MAX_DIGITS: Final = 4


def has_hops(headers: Mapping[str, str]) -> bool:
    """Return whether ``headers`` contain a valid count. An invalid value, which no gateway sends,
    is ignored, and counting starts again."""
    value = headers.get(HOPS_HEADER, "")
    return value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS


def next_hop(headers: Mapping[str, str]) -> str:
    """Return the header's value for the backend. Raises TOO_MANY_HOPS."""
    if not has_hops(headers):
        return FIRST_HOP
    hops = int(headers[HOPS_HEADER])
    if hops >= MAX_HOPS:
        raise GatewayError(
            Kind.TOO_MANY_HOPS,
            f"{LOOP_TEXT}the request has passed {hops} gateways ({HOPS_HEADER}), and at most "
            f"{MAX_HOPS} are allowed; check that no backend's endpoint leads back to a gateway",
        )
    return str(hops + 1)
