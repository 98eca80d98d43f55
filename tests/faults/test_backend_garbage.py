"""Tests backends that do not speak HTTP or HTTP/2, or whose responses do not fit the request.

The error names the cause, and bytes after a response are never read as the next response.
"""

from __future__ import annotations

from faults import h2
from faults.behind import (
    END,
    HEAD,
    MESSAGE,
    Faults,
    Harness,
    answers,
    ends,
    over_grpc,
    over_http,
    says,
    sends,
    some,
)
from faults.peer import GOOD_BODY, Connection, Script, http_answer

HTTP: Faults = {
    "a length too short": (
        "backend_garbage",
        says(HEAD + b"Content-Length: 20\r\n\r\n" + GOOD_BODY, then=Connection.gone),
    ),
    "a length that is none": (
        "backend_garbage", says(HEAD + b"Content-Length: x\r\n\r\n" + GOOD_BODY),
    ),
    "another protocol": ("backend_garbage", says(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "HTTP/2": ("backend_garbage", says(h2.frame(h2.SETTINGS, 0, 0))),
    "zeros": ("backend_garbage", says(bytes(1000))),
    "endless headers": ("backend_garbage", says(HEAD + b"A: " + b"x" * 70_000)),
    "very many headers": ("backend_garbage", says(HEAD + b"A: b\r\n" * 300 + b"\r\n")),
    "HTML": ("backend_garbage", answers(http_answer(b"<html><title>Hi</title></html>"))),
    "nothing": ("backend_garbage", answers(http_answer(b""))),
    "an array": ("backend_garbage", answers(http_answer(b"[]"))),
    "no outputs": ("backend_garbage", answers(http_answer(b'{"model_name":"m"}'))),
    "204": ("backend_garbage", answers(b"HTTP/1.1 204 No Content\r\n\r\n")),
    "a redirect": ("backend_garbage", answers(http_answer(b"", "302 Found", "Location: http://x/\r\n"))),
    "gzip that is none": (
        "backend_garbage", answers(http_answer(GOOD_BODY, headers="Content-Encoding: gzip\r\n")),
    ),
    "an unknown encoding": (
        "backend_garbage", answers(http_answer(GOOD_BODY, headers="Content-Encoding: br\r\n")),
    ),
    "a JSON length past the end": (
        "backend_garbage",
        answers(http_answer(GOOD_BODY, headers="Inference-Header-Content-Length: 5000\r\n")),
    ),
}  # fmt: skip


def _only(status: int, kind: str) -> Script:
    block = h2.fields((":status", str(status)), ("content-type", kind))
    return sends(
        lambda stream: h2.headers(stream, block),
        lambda stream: h2.frame(h2.DATA, h2.END_STREAM, stream, b"<html>"),
    )


RPC: Faults = {
    "no grpc-status": ("backend_garbage", sends(h2.headers, some(MESSAGE), ends(("x", "y")))),
    "a grpc-status that is none": (
        "backend_garbage", sends(h2.headers, some(MESSAGE), ends(("grpc-status", "fine"))),
    ),
    "HTML under 200": ("backend_garbage", _only(200, "text/html")),
    "HTML under 404": ("unsupported", _only(404, "text/html")),  # gRPC's table of HTTP statuses
    "HTML under 503": ("no_backend", _only(503, "text/html")),
    "a message cut short": ("backend_garbage", sends(h2.headers, some(MESSAGE[:-3]), END)),
    "no message": ("backend_garbage", sends(h2.headers, END)),
    # grpcio reads one message. It then waits for a status, which follows the bytes that it does not
    # read.
    "two messages": ("timeout", sends(h2.headers, some(MESSAGE * 2), END)),
    "bytes after the message": ("timeout", sends(h2.headers, some(MESSAGE + b"x"), END)),
    "compressed without saying how": (
        "backend_garbage", sends(h2.headers, some(b"\1" + MESSAGE[1:]), END),
    ),
    "no protobuf": ("backend_garbage", sends(h2.headers, some(h2.message(b"\x0b\xff")), END)),
}  # fmt: skip

OWN = {"two messages": "backend_garbage", "bytes after the message": "backend_garbage"}
"""Cases that only infergate's own engine distinguishes. It rejects excess data on arrival."""

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC, OWN)


def test_bytes_after_the_response_end_the_connection(harness: Harness) -> None:
    """The response is complete. The bytes after it must not be read as the next response."""
    evil = http_answer(b'{"error":"it broke"}')
    harness.rest.use(says(http_answer(GOOD_BODY) + evil, then=Connection.gone))
    for _ in range(3):
        before = harness.rest.connections
        harness.good("rest.fwd")
        assert harness.rest.connections == before + 2
