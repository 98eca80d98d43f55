"""Tests backends that close or reset the connection before or within a response, or while idle."""

from __future__ import annotations

from faults import h2
from faults.behind import (
    CHUNKED,
    HEAD,
    MESSAGE,
    Faults,
    Harness,
    over_grpc,
    over_http,
    says,
    sends,
    some,
)
from faults.peer import GOOD_BODY, Backend, Connection, http_answer
from faults.watch import until

HALF = http_answer(GOOD_BODY)[:-9]
HTTP: Faults = {
    "closed before an answer": ("backend_garbage", says()),
    "reset before an answer": ("backend_garbage", says(then=Connection.reset)),
    "closed in the status line": ("backend_garbage", says(b"HTTP/1.1 2")),
    "closed in the headers": ("backend_garbage", says(HEAD + b"Content-Le")),
    "closed in the body": ("backend_garbage", says(HALF)),
    "closed in a chunk": ("backend_garbage", says(CHUNKED + b"5\r\nab")),
}  # fmt: skip

RPC: Faults = {
    "closed before an answer": ("backend_garbage", sends(wait=False)),
    "closed after the headers": ("backend_garbage", sends(h2.headers, wait=False)),
    "closed in a message": ("backend_garbage", sends(h2.headers, some(MESSAGE[:9]), wait=False)),
    "closed before the status": ("backend_garbage", sends(h2.headers, some(MESSAGE), wait=False)),
    "GOAWAY": (
        "backend_garbage",
        sends(lambda _: h2.frame(h2.GOAWAY, 0, 0, bytes(8)), wait=False),
    ),
}  # fmt: skip

OWN = {"GOAWAY": "connect"}
"""Cases that only infergate's own engine distinguishes. In these cases, the call was not
processed."""

test_over_http = over_http(HTTP)
test_over_grpc = over_grpc(RPC, OWN)


def test_a_connection_that_the_backend_closed_is_not_reused(harness: Harness) -> None:
    def once(connection: Connection, backend: Backend) -> None:
        connection.request()
        connection.write(http_answer(GOOD_BODY))
        connection.half_close()
        connection.gone()  # until the gateway has noticed the end of the connection
        backend.requests.append("gone")

    harness.rest.use(once)
    for _ in range(3):
        before = harness.rest.requests.count("gone")
        with harness.serves("rest.fwd"):
            assert harness.ask_rest("rest.fwd").status == 200
        until(
            lambda n=before: harness.rest.requests.count("gone") > n,
            "the gateway has closed the connection",
        )  # type: ignore[misc]
