"""Writes errors for clients, and reads the errors of backends."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from infergate.codecs import http_status
from infergate.codecs.base import OutputsNeedTranslationError
from infergate.codecs.http_status import MAX_MESSAGE_CHARACTERS, client_message
from infergate.codecs.profiles import corrected_kind
from infergate.codecs.v2_rest.paths import match_path
from infergate.core.errors import (
    GatewayError,
    Kind,
    Origin,
    backend_failure,
    error_headers,
    parse_retry_after,
)
from infergate.core.wire import HttpRequest, HttpResponse

JSON_TYPE: Final = "application/json"

STATUS_BY_KIND: Final[Mapping[Kind, int]] = {
    **http_status.STATUS_BY_KIND,
    Kind.ALREADY_EXISTS: 400,  # Triton sends 400
}


def build_error(error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
    """Return the response ``{"error": …}``. Never raises."""
    headers = {"content-type": JSON_TYPE, **error_headers(error)}
    if error.kind is Kind.METHOD_NOT_ALLOWED and wire is not None:
        # If the transport rejected the request, its path may be unknown.
        with contextlib.suppress(GatewayError):
            headers["allow"] = match_path(wire.path).allowed_methods
    text = orjson.dumps({"error": client_message(error.public)})
    return HttpResponse(STATUS_BY_KIND[error.kind], headers, [text])


# ---- a backend's error ------------------------------------------------------------------------

_NEEDS_BINARY_OUTPUT: Final = re.compile("[sS]ending (?:FP16|BF16) data via JSON is not supported")
"""Matches the error of Triton and KServe for an output that they cannot write as JSON."""
_STREAM_STARTED_ERROR: Final = (
    "RuntimeError: Caught handled exception, but response already started."
)
_CAUSE_SEPARATOR: Final = "The above exception was the direct cause of the following exception:"
"""The line after the original error in a traceback that ends with ``_STREAM_STARTED_ERROR``.
Starlette writes both lines if an error occurs after a stream has started (MLServer's
``infer_stream``)."""
_MAX_DETAIL_CHARACTERS: Final = 20_000
_MAX_HTML_CHARACTERS: Final = 4096
"""Maximum number of characters of HTML that are searched for a title. The search takes quadratic
time if titles are not closed."""
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def backend_error(status: int, headers: Mapping[str, str], body: bytes) -> GatewayError:
    """Return the error in a backend's response, whatever its Content-Type."""
    text = body[: 4 * _MAX_DETAIL_CHARACTERS].decode("utf-8", "replace").strip()
    message = _error_line(text) or f"the backend responded with HTTP {status}"
    error = OutputsNeedTranslationError if _NEEDS_BINARY_OUTPUT.match(message) else GatewayError
    return error(
        corrected_kind(http_status.kind_of_status(status), message),
        message[:MAX_MESSAGE_CHARACTERS],
        origin=Origin.BACKEND,
        detail=f"HTTP {status}"
        if message == text
        else f"HTTP {status}: {text[:_MAX_DETAIL_CHARACTERS]}",
        retry_after=parse_retry_after(headers),
    )


def reported_error(message: Any, detail: str) -> GatewayError:
    """Return a BACKEND_ERROR with ``message``, the ``error`` member of a backend's response. The
    HTTP status of such a response does not indicate the kind of the error."""
    has_message = type(message) is str and message
    public = message if has_message else "the backend returned an error without a message"
    return backend_failure(Kind.BACKEND_ERROR, public[:MAX_MESSAGE_CHARACTERS], detail)


def _error_line(text: str) -> str:
    """Return the line with the error message in a body of any format that servers use."""
    text = text.removeprefix("data:").lstrip()  # an event of a stream (SSE)
    if text.startswith("{"):
        try:
            message = error_message(json.loads(text))
        except (ValueError, RecursionError):
            message = ""
        if message:
            return message
    if text.startswith("<"):
        title = _TITLE.search(text[:_MAX_HTML_CHARACTERS])
        return " ".join(title.group(1).split()) if title else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if not any(line.startswith("Traceback (") for line in lines):
        return lines[0]
    if lines[-1] == _STREAM_STARTED_ERROR and _CAUSE_SEPARATOR in lines[1:]:
        return lines[lines.index(_CAUSE_SEPARATOR) - 1]
    return lines[-1]


def error_message(document: dict[str, Any]) -> str:
    """Return the message of an error object: its member ``error`` (V2), ``detail`` (FastAPI:
    MLServer, KServe) or ``message`` (rest-proxy). If the member is an object (proxies, OpenAI's
    format), return the ``message`` of that object. If it is a list (FastAPI), join its messages."""
    for key in ("error", "detail", "message"):
        value = document.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return "; ".join(map(_validation_message, value))
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
        if value:
            return json.dumps(value)
    return ""


def _validation_message(item: Any) -> str:
    if isinstance(item, dict) and isinstance(item.get("msg"), str):
        location = item.get("loc")
        path = ".".join(map(str, location)) if isinstance(location, list) else ""
        return f"{path}: {item['msg']}" if path else item["msg"]
    return item if isinstance(item, str) else json.dumps(item)
