"""Tests that a backend that does not respond to a request, or stops in the middle, causes a
timeout."""

from __future__ import annotations

from faults import h2
from faults.peer import GOOD_BODY, Connection, http_answer
from faults.scripted_backends import (
    HEAD,
    MESSAGE,
    Faults,
    data_frame,
    over_grpc,
    over_http,
    send_frames,
    write_once,
)

HALF = http_answer(GOOD_BODY)[:-9]
HTTP: Faults = {
    "silence": ("timeout", write_once(then=Connection.wait_closed)),
    "half a head, then silence": ("timeout", write_once(HEAD, then=Connection.wait_closed)),
    "half a body, then silence": ("timeout", write_once(HALF, then=Connection.wait_closed)),
    "interim responses only": (
        "timeout", write_once(b"HTTP/1.1 102 P\r\n\r\n" * 9, then=Connection.wait_closed),
    ),
}  # fmt: skip

RPC: Faults = {
    "silence": ("timeout", send_frames()),
    "headers, then silence": ("timeout", send_frames(h2.headers)),
    "half a message, then silence": ("timeout", send_frames(h2.headers, data_frame(MESSAGE[:9]))),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
