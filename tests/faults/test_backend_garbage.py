"""Tests backends that do not speak HTTP or HTTP/2, or whose responses are invalid.

The error names the backend, and bytes after a response are never read as the next response.
"""

from __future__ import annotations

from collections.abc import Callable

from faults import h2
from faults.peer import GOOD_BODY, Connection, Script, http_answer
from faults.scripted_backends import (
    END,
    HEAD,
    MESSAGE,
    Faults,
    Harness,
    data_frame,
    over_grpc,
    over_http,
    respond_with,
    send_frames,
    trailers,
    write_once,
)

HTTP: Faults = {
    "a body longer than its Content-Length": (
        "backend_garbage",
        write_once(HEAD + b"Content-Length: 20\r\n\r\n" + GOOD_BODY, then=Connection.wait_closed),
    ),
    "a Content-Length that is not a number": (
        "backend_garbage", write_once(HEAD + b"Content-Length: x\r\n\r\n" + GOOD_BODY),
    ),
    "another protocol": ("backend_garbage", write_once(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "HTTP/2": ("backend_garbage", write_once(h2.frame(h2.SETTINGS, 0, 0))),
    "zeros": ("backend_garbage", write_once(bytes(1000))),
    "a header of 70 kB": ("backend_garbage", write_once(HEAD + b"A: " + b"x" * 70_000)),
    "300 headers": ("backend_garbage", write_once(HEAD + b"A: b\r\n" * 300 + b"\r\n")),
    "HTML": ("backend_garbage", respond_with(http_answer(b"<html><title>Hi</title></html>"))),
    "an empty body": ("backend_garbage", respond_with(http_answer(b""))),
    "an array": ("backend_garbage", respond_with(http_answer(b"[]"))),
    "no outputs": ("backend_garbage", respond_with(http_answer(b'{"model_name":"m"}'))),
    "204": ("backend_garbage", respond_with(b"HTTP/1.1 204 No Content\r\n\r\n")),
    "a redirect": (
        "backend_garbage", respond_with(http_answer(b"", "302 X", "Location: http://x/\r\n")),
    ),
    "a body that is not gzip": (
        "backend_garbage",
        respond_with(http_answer(GOOD_BODY, headers="Content-Encoding: gzip\r\n")),
    ),
    "an unknown encoding": (
        "backend_garbage", respond_with(http_answer(GOOD_BODY, headers="Content-Encoding: br\r\n")),
    ),
    "a JSON length past the end": (
        "backend_garbage",
        respond_with(http_answer(GOOD_BODY, headers="Inference-Header-Content-Length: 5000\r\n")),
    ),
}  # fmt: skip


def _response(data: bytes, end: Callable[[int], bytes] = END) -> Script:
    return send_frames(h2.headers, data_frame(data), end)


def _html(status: int, kind: str) -> Script:
    block = h2.fields((":status", str(status)), ("content-type", kind))
    return send_frames(
        lambda stream: h2.headers(stream, block),
        lambda stream: h2.frame(h2.DATA, h2.END_STREAM, stream, b"<html>"),
    )


RPC: Faults = {
    "no grpc-status": ("backend_garbage", _response(MESSAGE, trailers(("x", "y")))),
    "a grpc-status that is not a number": (
        "backend_garbage", _response(MESSAGE, trailers(("grpc-status", "fine"))),
    ),
    "HTML under 200": ("backend_garbage", _html(200, "text/html")),
    "HTML under 404": ("unsupported", _html(404, "text/html")),  # gRPC maps 404 to UNIMPLEMENTED
    "HTML under 503": ("no_backend", _html(503, "text/html")),
    "a message cut short": ("backend_garbage", _response(MESSAGE[:-3])),
    "no message": ("backend_garbage", send_frames(h2.headers, END)),
    # grpcio reads one message. It then waits for a status, which follows the bytes that it does not
    # read.
    "two messages": ("timeout", _response(MESSAGE * 2)),
    "bytes after the message": ("timeout", _response(MESSAGE + b"x")),
    "compressed without grpc-encoding": ("backend_garbage", _response(b"\1" + MESSAGE[1:])),
    "a message that is not protobuf": ("backend_garbage", _response(h2.message(b"\x0b\xff"))),
}  # fmt: skip

OWN_ENGINE = {"two messages": "backend_garbage", "bytes after the message": "backend_garbage"}
"""The outcomes with infergate's own engine, which rejects excess data on arrival."""

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC, OWN_ENGINE)


def test_bytes_after_the_response_end_the_connection(harness: Harness) -> None:
    """The response is complete. The bytes after it must not be read as the next response."""
    evil = http_answer(b'{"error":"it broke"}')
    harness.rest.use(write_once(http_answer(GOOD_BODY) + evil, then=Connection.wait_closed))
    for _ in range(3):
        before = harness.rest.connections
        harness.good("rest.fwd")
        assert harness.rest.connections == before + 2
