"""Tests that a backend that does not respond to a request, or stops in the middle, causes a
timeout."""

from __future__ import annotations

from faults import h2
from faults.behind import HEAD, MESSAGE, Faults, over_grpc, over_http, says, sends, some
from faults.peer import GOOD_BODY, Connection, http_answer

HALF = http_answer(GOOD_BODY)[:-9]
HTTP: Faults = {
    "silence": ("timeout", says(then=Connection.gone)),
    "half a head, then silence": ("timeout", says(HEAD, then=Connection.gone)),
    "half a body, then silence": ("timeout", says(HALF, then=Connection.gone)),
    "interim answers only": ("timeout", says(b"HTTP/1.1 102 P\r\n\r\n" * 9, then=Connection.gone)),
}  # fmt: skip

RPC: Faults = {
    "silence": ("timeout", sends()),
    "headers, then silence": ("timeout", sends(h2.headers)),
    "half a message, then silence": ("timeout", sends(h2.headers, some(MESSAGE[:9]))),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
