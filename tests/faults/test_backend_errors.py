"""Tests that the client receives the errors with which backends and proxies respond, in every
form."""

from __future__ import annotations

from faults import h2
from faults.behind import Faults, answers, ends, over_grpc, over_http, sends
from faults.peer import Script, http_answer

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "/srv/x.py", line 3\nValueError: it broke\n'
)

HTTP: Faults = {
    "an error under 200": ("backend_error", answers(http_answer(b'{"error":"it broke"}'))),
    "500": ("backend_error", answers(http_answer(b'{"error":"it broke"}', "500 X"))),
    "500 with a traceback": ("backend_error", answers(http_answer(TRACEBACK, "500 X"))),
    "500 with nothing": ("backend_error", answers(http_answer(b"", "500 X"))),
    "503 with HTML": ("no_backend", answers(http_answer(b"<html><title>busy</title>", "503 X"))),
    "429": ("rate_limited", answers(http_answer(b"full", "429 X", "Retry-After: 7\r\n"))),
    "404": ("not_found", answers(http_answer(b'{"error":"no such model"}', "404 X"))),
    "422 of FastAPI": ("bad_request", answers(http_answer(b'{"detail":"SHAPE"}', "422 X"))),
}  # fmt: skip


def _status(code: int, words: str) -> Script:
    return sends(h2.headers, ends(("grpc-status", str(code)), ("grpc-message", words)))


RPC: Faults = {
    "INTERNAL": ("backend_error", _status(13, "it broke")),
    "UNKNOWN": ("backend_error", _status(2, "it broke")),
    "a status that is none": ("backend_error", _status(99, "it broke")),
    "UNAVAILABLE": ("no_backend", _status(14, "busy")),
    "INVALID_ARGUMENT": ("bad_request", _status(3, "SHAPE")),
    "NOT_FOUND": ("not_found", _status(5, "no such model")),
    "UNIMPLEMENTED": ("unsupported", _status(12, "no such method")),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
