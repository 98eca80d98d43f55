"""Host names and IP addresses."""

from __future__ import annotations

import ipaddress


def is_ip_address(host: str) -> bool:
    """Return whether ``host`` is an IPv4 or IPv6 address without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
