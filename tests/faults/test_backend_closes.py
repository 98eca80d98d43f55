"""Tests backends that close or reset the connection before or within a response, or while idle."""

from __future__ import annotations

from faults import h2
from faults.peer import GOOD_BODY, Backend, Connection, http_answer
from faults.scripted_backends import (
    CHUNKED,
    HEAD,
    MESSAGE,
    Faults,
    Harness,
    data_frame,
    over_grpc,
    over_http,
    send_frames,
    write_once,
)
from faults.watch import until

HALF = http_answer(GOOD_BODY)[:-9]
HTTP: Faults = {
    "closed before a response": ("backend_garbage", write_once()),
    "reset before a response": ("backend_garbage", write_once(then=Connection.reset)),
    "closed in the status line": ("backend_garbage", write_once(b"HTTP/1.1 2")),
    "closed in the headers": ("backend_garbage", write_once(HEAD + b"Content-Le")),
    "closed in the body": ("backend_garbage", write_once(HALF)),
    "closed in a chunk": ("backend_garbage", write_once(CHUNKED + b"5\r\nab")),
}  # fmt: skip

RPC: Faults = {
    "closed before a response": ("backend_garbage", send_frames(wait=False)),
    "closed after the headers": ("backend_garbage", send_frames(h2.headers, wait=False)),
    "closed in a message": (
        "backend_garbage", send_frames(h2.headers, data_frame(MESSAGE[:9]), wait=False),
    ),
    "closed before the status": (
        "backend_garbage", send_frames(h2.headers, data_frame(MESSAGE), wait=False),
    ),
    "GOAWAY": (
        "backend_garbage", send_frames(lambda _: h2.frame(h2.GOAWAY, 0, 0, bytes(8)), wait=False),
    ),
}  # fmt: skip

OWN_ENGINE = {"GOAWAY": "connect"}
"""The outcomes with infergate's own engine, which knows that the call was not processed."""

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC, OWN_ENGINE)


def test_a_connection_that_the_backend_closed_is_not_reused(harness: Harness) -> None:
    def respond_and_close(connection: Connection, backend: Backend) -> None:
        connection.request()
        connection.write(http_answer(GOOD_BODY))
        connection.half_close()
        connection.wait_closed()
        backend.requests.append("closed")

    harness.rest.use(respond_and_close)
    for _ in range(3):
        before = harness.rest.requests.count("closed")
        with harness.serves("rest.fwd"):
            assert harness.send_rest("rest.fwd").status == 200
        until(
            lambda n=before: harness.rest.requests.count("closed") > n,
            "the gateway has closed the connection",
        )  # type: ignore[misc]
