"""Who may look at the console and act by it, as far as browsers are concerned. Pure.

*Threat.* Any page that somebody reads may have the browser ask the admin port, which that page's
owner could not reach. *Rule 1.* What changes anything is asked with a header that a page of
elsewhere cannot send without being let (it is not), and not from another origin, as browsers tell.
*Rule 2.* DNS rebinding makes another's page one of this origin, by a public name that points here:
only names that cannot be so, or that the operator lists, are answered.

Sources: Fetch (CORS-safelisted headers, Sec-Fetch-Site), RFC 6454 (Origin), RFC 6762 and the list
of special-use domain names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

MARK: Final = "x-infergate-console"
"""The header of Rule 1; any value will do."""
_BROWSERS: Final = ("origin", "sec-fetch-site")
_PRIVATE: Final = (
    ".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc", ".svc.cluster.local"
)  # fmt: skip
"""Ends of names that nobody can have in the public DNS."""


def is_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser says, unasked, where a request comes from."""
    return any(name in headers for name in _BROWSERS)


def unknown_host(headers: Mapping[str, str], hosts: Collection[str]) -> str:
    """The name that is asked for, where it may be an attacker's (Rule 2); empty: it is none."""
    name = _host(headers.get("host", ""))
    if not name or "." not in name or name.endswith(_PRIVATE) or name in hosts or _is_ip(name):
        return ""
    return name


def foreign(headers: Mapping[str, str]) -> str:
    """Why a request to change something is refused (Rule 1); empty: it is not."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    if site != "same-origin" or (
        origin is not None and _netloc(origin) != headers.get("host", "").lower()
    ):
        return "not from a web page of elsewhere"
    if MARK not in headers:
        return f"the header {MARK} is missing"
    return ""


def _host(header: str) -> str:
    """The name or address in a Host header, without its port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return header.lower()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
