"""The static files of the console's page, and the HTTP headers of everything below ``/console``.

*Rule.* The content security policy allows only files of this origin and no inline scripts. If a
name or an error on the page contains a script, the browser blocks the script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from infergate.core.wire import HttpResponse

INDEX: Final = "index.html"
_CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": _CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every response below ``/console``."""


@cache
def _files() -> dict[str, bytes]:
    folder = files(__package__) / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def static_file(name: str) -> HttpResponse | None:
    """Return a response with the file ``name``, or None if there is no such file."""
    data = _files().get(name)
    if data is None:
        return None
    return HttpResponse(
        200, {"content-type": _CONTENT_TYPES[name.rpartition(".")[2]], **HEADERS}, [data]
    )
