"""Protects the admin listener against other websites that an operator's browser visits. This module
has no I/O.

A web page can make its visitor's browser send requests to the admin port, which the page's author
cannot reach directly.

*Rule 1* (against CSRF). A request that changes something must have a header that a page of another
origin cannot send, and must not come from another origin according to the browser's headers.
*Rule 2* (against DNS rebinding). An attacker's public name that resolves to this host would make
the attacker's page same-origin. The Host header of a request for the console or the configuration
must therefore be an IP address, a name that cannot exist in the public DNS, or a name that the
operator lists.

Sources: Fetch (CORS-safelisted headers, Sec-Fetch-Site), RFC 6454 (Origin), RFC 6762 and the list
of special-use domain names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from infergate.core.hosts import is_ip_address
from infergate.core.wire import HttpRequest, HttpResponse

CONSOLE_HEADER: Final = "x-infergate-console"
"""The header of Rule 1. Its value does not matter."""
_BROWSER_HEADERS: Final = ("origin", "sec-fetch-site")
_PRIVATE_SUFFIXES: Final = (
    ".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc", ".svc.cluster.local"
)  # fmt: skip
"""Suffixes of names that cannot be registered in the public DNS."""


def is_from_browser(headers: Mapping[str, str]) -> bool:
    """Return whether the request has headers that only browsers add."""
    return any(name in headers for name in _BROWSER_HEADERS)


def browser_problem(headers: Mapping[str, str]) -> str:
    """Return the response text that says why a browser's request to change something is rejected
    (Rule 1). Return an empty string if the request is allowed or does not come from a browser."""
    problem = rejection_reason(headers) if is_from_browser(headers) else ""
    return f"rejected: {problem}" if problem else ""


def untrusted_host(headers: Mapping[str, str], hosts: Collection[str]) -> str:
    """Return the name in the Host header if it may belong to an attacker (Rule 2), or otherwise an
    empty string."""
    name = _host(headers.get("host", ""))
    if (
        not name
        or "." not in name
        or name.endswith(_PRIVATE_SUFFIXES)
        or name in hosts
        or is_ip_address(name)
    ):
        return ""
    return name


def reject_untrusted_host(
    request: HttpRequest, hosts: Collection[str], headers: Mapping[str, str]
) -> HttpResponse | None:
    """Return an error response with ``headers`` if the request's host may belong to an attacker
    (Rule 2), or None if the host is allowed."""
    name = untrusted_host(request.headers, hosts)
    if not name:
        return None
    text = (
        f"host '{name}' is not allowed: add it to listeners.admin.hosts, or use the "
        "listener's IP address\n"
    )
    return HttpResponse(403, headers, [text.encode("utf-8", "backslashreplace")])


def rejection_reason(headers: Mapping[str, str]) -> str:
    """Return the reason for rejecting a request that changes something (Rule 1), or an empty string
    if the request is allowed."""
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin" or (
        origin is not None and _netloc(origin) != headers.get("host", "").lower()
    ):
        return "the request comes from a web page of another origin"
    if CONSOLE_HEADER not in headers:
        return f"the header {CONSOLE_HEADER} is missing"
    return ""


def _host(header: str) -> str:
    """Return the name or address in a Host header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return header.lower()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
