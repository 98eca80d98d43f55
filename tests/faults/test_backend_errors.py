"""Tests that the client receives the errors with which backends and proxies respond, with a
matching status."""

from __future__ import annotations

from faults import h2
from faults.peer import Script, http_answer
from faults.scripted_backends import (
    Faults,
    over_grpc,
    over_http,
    respond_with,
    send_frames,
    trailers,
)

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "/srv/x.py", line 3\nValueError: it broke\n'
)

HTTP: Faults = {
    "an error under 200": ("backend_error", respond_with(http_answer(b'{"error":"it broke"}'))),
    "500": ("backend_error", respond_with(http_answer(b'{"error":"it broke"}', "500 X"))),
    "500 with a traceback": ("backend_error", respond_with(http_answer(TRACEBACK, "500 X"))),
    "500 with an empty body": ("backend_error", respond_with(http_answer(b"", "500 X"))),
    "503 with HTML": ("no_backend", respond_with(http_answer(b"<html>busy</html>", "503 X"))),
    "429": ("rate_limited", respond_with(http_answer(b"full", "429 X", "Retry-After: 7\r\n"))),
    "404": ("not_found", respond_with(http_answer(b'{"error":"no such model"}', "404 X"))),
    "422 of FastAPI": ("bad_request", respond_with(http_answer(b'{"detail":"SHAPE"}', "422 X"))),
}  # fmt: skip


def _status(code: int, text: str) -> Script:
    return send_frames(h2.headers, trailers(("grpc-status", str(code)), ("grpc-message", text)))


RPC: Faults = {
    "INTERNAL": ("backend_error", _status(13, "it broke")),
    "UNKNOWN": ("backend_error", _status(2, "it broke")),
    "an unknown status": ("backend_error", _status(99, "it broke")),
    "UNAVAILABLE": ("no_backend", _status(14, "busy")),
    "INVALID_ARGUMENT": ("bad_request", _status(3, "SHAPE")),
    "NOT_FOUND": ("not_found", _status(5, "no such model")),
    "UNIMPLEMENTED": ("unsupported", _status(12, "no such method")),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
