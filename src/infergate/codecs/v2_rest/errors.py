"""Errors both ways: the status of each kind, and what a backend's error answer says."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from infergate.codecs.base import OutputsNeedTranslation
from infergate.codecs.profiles import kind_by_words
from infergate.codecs.v2_rest.paths import locate
from infergate.core.errors import GatewayError, Kind, Origin, refusal_headers, retry_seconds
from infergate.core.wire import HttpRequest, HttpResponse

JSON_TYPE: Final = "application/json"
LONGEST: Final = 2000
"""Characters of a message that a client is told."""

STATUS: Final[Mapping[Kind, int]] = {
    Kind.BAD_REQUEST: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.METHOD_NOT_ALLOWED: 405,
    Kind.ALREADY_EXISTS: 400,  # as Triton
    Kind.UNSUPPORTED: 501,
    Kind.UNSUPPORTED_ENCODING: 415,
    Kind.TOO_LARGE: 413,
    Kind.RATE_LIMITED: 429,
    Kind.OVERLOADED: 503,
    Kind.NO_BACKEND: 503,
    Kind.CONNECT: 502,
    Kind.TIMEOUT: 504,
    Kind.BACKEND_GARBAGE: 502,
    Kind.BACKEND_ERROR: 500,
    Kind.CANCELLED: 499,
    Kind.INTERNAL: 500,
}
"""The status that tells each kind."""


def build_error(error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
    """``{"error": …}``, for any error in answer to any request. Never raises."""
    headers = {"content-type": JSON_TYPE, **refusal_headers(error)}
    if error.kind is Kind.METHOD_NOT_ALLOWED and wire is not None:
        # suppressed: the transport's own refusal of a path that is no place of ours
        with contextlib.suppress(GatewayError):
            headers["allow"] = locate(wire.path).allow
    # a name in it may be as long as a body; a path may hold what UTF-8 cannot
    public = error.public[:LONGEST].encode("utf-8", "replace").decode()
    return HttpResponse(STATUS[error.kind], headers, [orjson.dumps({"error": public})])


# ---- a backend's error ------------------------------------------------------------------------

KIND: Final[Mapping[int, Kind]] = {
    401: Kind.UNAUTHENTICATED,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    405: Kind.BACKEND_GARBAGE,  # every method we use is the specification's
    408: Kind.TIMEOUT,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    501: Kind.UNSUPPORTED,
    503: Kind.NO_BACKEND,
    504: Kind.TIMEOUT,
}
"""What a status other than 200 means. Others: 4xx BAD_REQUEST (Triton 400, FastAPI 422, KServe
409), 5xx BACKEND_ERROR, the rest is no answer to anything we ask."""

_NOT_IN_JSON: Final = re.compile("[sS]ending (?:FP16|BF16) data via JSON is not supported")
"""How Triton and KServe refuse, once the model has run, to write an output in JSON."""
_TOO_LATE: Final = "RuntimeError: Caught handled exception, but response already started."
_CAUSE: Final = "The above exception was the direct cause of the following exception:"
"""How Starlette wraps what goes wrong once a stream was promised (MLServer's ``infer_stream``)."""
_EVENT: Final = "data:"
"""Of a stream of events (SSE), where a server answers so."""
_MOST_DETAIL: Final = 20_000
_HEAD: Final = 4096
"""Characters of an HTML page in which its title is looked for: a title that begins and does not end
is looked for to the end from each beginning."""
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def kind_of(status: int) -> Kind:
    """The kind that a backend's ``status`` other than 200 tells."""
    known = KIND.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return Kind.BAD_REQUEST
    return Kind.BACKEND_ERROR if 500 <= status < 600 else Kind.BACKEND_GARBAGE


def backend_error(status: int, headers: Mapping[str, str], body: bytes) -> GatewayError:
    """The error that a backend's answer tells, judged by its body, not by its Content-Type."""
    text = body[: 4 * _MOST_DETAIL].decode("utf-8", "replace").strip()
    message = _message(text) or f"the backend answered HTTP {status}"
    error = OutputsNeedTranslation if _NOT_IN_JSON.match(message) else GatewayError
    return error(
        kind_by_words(kind_of(status), message),
        message[:LONGEST],
        origin=Origin.BACKEND,
        detail=f"HTTP {status}" if message == text else f"HTTP {status}: {text[:_MOST_DETAIL]}",
        retry_after=retry_seconds(headers),
    )


def _message(text: str) -> str:
    """The meaningful line of an error body in any of the shapes that servers use."""
    text = text.removeprefix(_EVENT).lstrip()
    if text.startswith("{"):
        try:
            told = told_error(json.loads(text))
        except (ValueError, RecursionError):
            told = ""
        if told:
            return told
    if text.startswith("<"):
        title = _TITLE.search(text[:_HEAD])
        return " ".join(title.group(1).split()) if title else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if not any(line.startswith("Traceback (") for line in lines):
        return lines[0]
    if lines[-1] == _TOO_LATE and _CAUSE in lines[1:]:
        return lines[lines.index(_CAUSE) - 1]
    return lines[-1]


def told_error(document: dict[str, Any]) -> str:
    """The message of an error object: ``error`` (V2), ``detail`` (FastAPI: MLServer, KServe),
    ``message`` (rest-proxy). Of an object (proxies, OpenAI's form) its ``message``."""
    for key in ("error", "detail", "message"):
        said = document.get(key)
        if isinstance(said, str) and said:
            return said
        if isinstance(said, list) and said:
            return "; ".join(map(_complaint, said))
        if isinstance(said, dict) and isinstance(said.get("message"), str):
            return str(said["message"])
        if said:
            return json.dumps(said)
    return ""


def _complaint(item: Any) -> str:
    """One entry of FastAPI's ``detail`` list."""
    if isinstance(item, dict) and isinstance(item.get("msg"), str):
        place = item.get("loc")
        where = ".".join(map(str, place)) if isinstance(place, list) else ""
        return f"{where}: {item['msg']}" if where else item["msg"]
    return item if isinstance(item, str) else json.dumps(item)
