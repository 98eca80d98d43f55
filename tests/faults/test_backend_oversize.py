"""Tests responses that are too large, before or after decompression: the gateway rejects them as
soon as it knows their size, and does not keep them in memory."""

from __future__ import annotations

import gzip

from faults import h2
from faults.peer import Connection, http_answer
from faults.scripted_backends import (
    BODY,
    CHUNKED,
    END,
    HEAD,
    Faults,
    data_frame,
    over_grpc,
    over_http,
    respond_with,
    send_frames,
    write_once,
)

CHUNK = b"%x\r\n%b\r\n" % (60_000, b" " * 60_000)
BOMB = gzip.compress(bytes(1 << 24))
HTTP: Faults = {
    "a gzip bomb": (
        "backend_garbage",
        respond_with(http_answer(BOMB, headers="Content-Encoding: gzip\r\n")),
    ),
    "a Content-Length over the limit": (
        "too_large",
        write_once(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY + 1), then=Connection.wait_closed),
    ),
    "chunks over the limit": (
        "too_large", write_once(CHUNKED + CHUNK * 160, then=Connection.wait_closed),
    ),
}  # fmt: skip


def _compressed(stream: int) -> bytes:
    return h2.headers(stream, h2.OK_HEADERS + h2.fields(("grpc-encoding", "gzip")))


RPC: Faults = {
    "a message over the limit": (
        "too_large", send_frames(h2.headers, data_frame(b"\0\x01\0\0\0" + b"x" * 10_000)),
    ),
    "a gzip bomb": (
        "too_large",
        send_frames(_compressed, data_frame(b"\1" + len(BOMB).to_bytes(4) + BOMB), END),
    ),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
