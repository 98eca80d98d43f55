"""Asks a running gateway's admin port."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

_PATIENCE: Final = 10.0
_LONGEST: Final = 300
Json = dict[str, Any]


class Unanswered(Exception):  # noqa: N818 - it is what became of a question
    """The text says why, and what may be done."""


def parse_admin(text: str) -> str:
    """The URL of an admin port, without a path; ``host:port`` will do. Raises ValueError."""
    url = urlsplit(text if "://" in text else f"http://{text}")
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"expected a URL like http://127.0.0.1:8002, got '{text}'")
    _ = url.port  # raises where it is none
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def ask(admin: str, path: str) -> Json:
    """The JSON at ``path`` of the admin port ``admin``. Raises Unanswered.

    No proxy is asked, whatever the environment says: admin ports are near. Over https the system's
    authorities are trusted, or those of SSL_CERT_FILE.
    """
    # Here, for who serves parses --admin, too, and needs no client of HTTP.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415

    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"{admin}{path}", timeout=_PATIENCE) as answer:
            told: Any = json.load(answer)
    except HTTPError as error:
        said = error.read(_LONGEST).decode(errors="replace").strip()
        why = "its console is off, or it is older" if error.code == 404 else said
        raise Unanswered(f"{admin}{path} answers with HTTP {error.code}: {why}") from None
    except URLError as error:
        raise Unanswered(
            f"{admin} cannot be reached: {error.reason}; is it the admin listener's address? "
            "(--admin URL)"
        ) from None
    except (OSError, ValueError, HTTPException) as error:  # the last: a port that has no HTTP/1
        raise Unanswered(f"{admin}{path} gives no good answer: {error}") from None
    if not isinstance(told, dict):
        raise Unanswered(f"{admin}{path} gives no good answer: it is no object")
    return told
