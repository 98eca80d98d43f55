"""A client for a running gateway's admin listener."""

from __future__ import annotations

import json
import os
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from infergate.core.name_rules import escape_unsafe

_TIMEOUT_SECONDS: Final = 10.0
KEY_VARIABLE: Final = "INFERGATE_ADMIN_KEY"
"""The environment variable with the key of the admin listener."""
_MAX_ERROR_BYTES: Final = 300
Json = dict[str, Any]


class AdminQueryError(Exception):
    """A query failed. The message gives the reason."""


def parse_admin_url(text: str) -> str:
    """Normalize the URL of an admin listener, or ``host:port``. Raises ValueError."""
    if "@" in text:
        raise ValueError(f"a user or password is not supported here; set the key in {KEY_VARIABLE}")
    url = urlsplit(text if "://" in text else f"http://{text}")
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"expected a URL like http://127.0.0.1:8002, got '{text}'")
    _ = url.port  # raises ValueError for an invalid port
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def get_json(
    admin: str,
    path: str,
    method: str = "GET",
    not_found: str = "the gateway's console is off, or the gateway is older than this command",
) -> Json:
    """Return the JSON at ``path`` of the admin listener ``admin``. Methods other than GET send the
    key in INFERGATE_ADMIN_KEY, if any. Raises AdminQueryError, with the reason ``not_found`` if the
    path does not exist. Proxies in the environment are ignored, because admin listeners are usually
    local. For https, the certificate authorities of the system or of SSL_CERT_FILE are trusted."""
    # These modules are imported here, because most commands need no HTTP client.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415

    key = os.environ.get(KEY_VARIABLE) if method != "GET" else None
    headers = {"authorization": f"Bearer {key}"} if key else {}
    opener = build_opener(ProxyHandler({}))
    try:
        request = Request(f"{admin}{path}", method=method, headers=headers)  # noqa: S310 - HTTP(S) only
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            data: Any = json.load(response)
    except HTTPError as error:
        text = error.read(_MAX_ERROR_BYTES).decode(errors="replace").strip()
        reason = not_found if error.code == 404 else escape_unsafe(text)
        raise AdminQueryError(f"{admin}{path} returned HTTP {error.code}: {reason}") from None
    except URLError as error:
        raise AdminQueryError(
            f"{admin} cannot be reached: {error.reason}; is this the address of the admin "
            "listener? (--admin URL)"
        ) from None
    except TimeoutError:
        reason = f"did not respond within {_TIMEOUT_SECONDS:g} s"
        raise AdminQueryError(f"{admin}{path} {reason}") from None
    except (OSError, ValueError, HTTPException) as error:  # for example, not HTTP/1
        raise AdminQueryError(f"{admin}{path} returned an invalid response: {error}") from None
    if not isinstance(data, dict):
        raise AdminQueryError(f"{admin}{path} returned an invalid response: not a JSON object")
    return data
