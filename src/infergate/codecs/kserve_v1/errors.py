"""Builds error responses with KServe's texts, and reads the error responses of servers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

import orjson

from infergate.codecs.http_status import (
    MAX_MESSAGE_CHARACTERS,
    STATUS_BY_KIND,
    client_message,
    kind_of_status,
)
from infergate.codecs.kserve_v1.paths import METHOD_NOT_ALLOWED, NOT_FOUND, match_request
from infergate.core.errors import GatewayError, Kind, Origin, error_headers, parse_retry_after
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

JSON_HEADERS: Final = {"content-type": "application/json"}
_MAX_TEXT_BYTES: Final = 16 * 1024
_FRAMEWORK_TEXTS: Final = frozenset({NOT_FOUND, METHOD_NOT_ALLOWED})


def build_error(error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
    """Return the response for ``error``: ``{"error": …}``, or FastAPI's ``{"detail": …}`` for an
    unknown path or a method that the path does not allow. Never raises."""
    headers = {**JSON_HEADERS, **error_headers(error)}
    if error.kind is Kind.METHOD_NOT_ALLOWED:
        headers["allow"] = "GET"
    key = "detail" if error.public in _FRAMEWORK_TEXTS else "error"
    body = orjson.dumps({key: client_message(_text(error, wire))})
    return HttpResponse(STATUS_BY_KIND[error.kind], headers, [body])


def _text(error: GatewayError, wire: HttpRequest | None) -> str:
    if error.kind is Kind.NOT_FOUND and wire is not None:
        with suppress(GatewayError):
            if model := match_request(wire.method, wire.path).summary.model:
                return f"Model with name {model} does not exist."
    return error.public


def backend_error(wire: HttpResponse) -> GatewayError:
    """Return the error in a server's response. The error's text is ``error`` or ``detail`` of a
    JSON object, or the first line of any other body, unless this line is HTML or unprintable."""
    body = bytes(join_parts(wire.body))[:_MAX_TEXT_BYTES]
    text = body.decode("utf-8", "replace").strip()
    message = text.partition("\n")[0]
    if message.startswith("<") or not message.isprintable():
        message = ""
    with suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict) and (
            value := document.get("error") or document.get("detail")
        ):
            message = value if isinstance(value, str) else json.dumps(value)
    return GatewayError(
        kind_of_status(wire.status),
        message[:MAX_MESSAGE_CHARACTERS] or f"the backend responded with HTTP {wire.status}",
        origin=Origin.BACKEND,
        detail=f"HTTP {wire.status}",
        retry_after=parse_retry_after(wire.headers),
    )
