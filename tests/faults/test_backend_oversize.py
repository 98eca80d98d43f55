"""Tests responses that are too large, before or after decompression: the gateway rejects them as
soon as it knows their size, and does not keep them in memory."""

from __future__ import annotations

import gzip

from faults import h2
from faults.behind import (
    BODY,
    CHUNKED,
    END,
    HEAD,
    Faults,
    answers,
    over_grpc,
    over_http,
    says,
    sends,
    some,
)
from faults.peer import Connection, http_answer

CHUNK = b"%x\r\n%b\r\n" % (60_000, b" " * 60_000)
BOMB = gzip.compress(bytes(1 << 24))
HTTP: Faults = {
    "a gzip bomb": (
        "backend_garbage",
        answers(http_answer(BOMB, headers="Content-Encoding: gzip\r\n")),
    ),
    "an announced answer too large": (
        "too_large", says(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY + 1), then=Connection.gone),
    ),
    "chunks too large": (
        "too_large",
        says(CHUNKED + CHUNK * 160, then=Connection.gone),
    ),
}  # fmt: skip


def _compressed(stream: int) -> bytes:
    return h2.headers(stream, h2.OK_HEADERS + h2.fields(("grpc-encoding", "gzip")))


RPC: Faults = {
    "an answer too large": (
        "too_large", sends(h2.headers, some(b"\0\x01\0\0\0" + b"x" * 10_000)),
    ),
    "a compressed bomb": (
        "too_large", sends(_compressed, some(b"\1" + len(BOMB).to_bytes(4) + BOMB), END),
    ),
}  # fmt: skip

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC)
