"""The files of the page, as browsers are given them.

*Rule.* The page gets everything from here and nothing from elsewhere, and runs no code but that of
its files: the policy says so to the browser, whatever a name or an error that it shows may hold.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from infergate.core.wire import HttpResponse

INDEX: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of everything below /console."""


@cache
def _files() -> dict[str, bytes]:
    folder = files(__package__) / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def page(name: str) -> HttpResponse | None:
    """The file ``name``; None: there is none of that name."""
    data = _files().get(name)
    if data is None:
        return None
    return HttpResponse(200, {"content-type": _TYPES[name.rpartition(".")[2]], **HEADERS}, [data])
