"""Tests backends that respond before they have the complete request, and then read the rest, ignore
it, or close.

The response is passed on, and the rest of the request is not sent as the next request.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

from faults import h2
from faults.payloads import document, tensor
from faults.peer import GOOD_BODY, Backend, Connection, Script, good_http, http_answer
from faults.rpc import call, infer_message
from faults.scripted_backends import MESSAGE, Harness, good_rpc, trailers
from faults.watch import MIB, counted, until

REFUSAL = http_answer(b'{"error":"it broke"}', "400 X")
SIZE = 6 * MIB
"""More bytes than the socket buffers hold if the backend does not read."""
LONG = document(
    tensor(datatype="UINT8", shape=[SIZE], data=None, parameters={"binary_data_size": SIZE})
)


def reads_later(answer: bytes) -> Script:
    """Return a script that responds after the head, and then reads the rest of the request."""

    def script(connection: Connection, backend: Backend) -> None:
        while True:
            connection.head()
            connection.write(answer)
            connection.request()

    return script


def closes(answer: bytes) -> Script:
    """Return a script that responds after the head, and then closes its side."""

    def script(connection: Connection, backend: Backend) -> None:
        connection.head()
        connection.write(answer)
        connection.half_close()
        connection.wait_closed()

    return script


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
@pytest.mark.parametrize("size", [0, SIZE], ids=["short", "long"])
@pytest.mark.parametrize("answer", [REFUSAL, http_answer(GOOD_BODY)], ids=["refusal", "good"])
@pytest.mark.parametrize("make_script", [reads_later, closes])
def test_early_http_responses_are_relayed(
    harness: Harness, model: str, size: int, answer: bytes, make_script: Callable[[bytes], Script]
) -> None:
    harness.rest.use(make_script(answer))
    is_refused = answer is REFUSAL
    outcome = "bad_request" if is_refused else "ok"
    before = counted(harness.gateway, backend="shop", outcome=outcome)
    for _ in range(2):  # a connection with an incomplete request is not reused
        response = harness.send_rest(model, LONG if size else None, size)
        assert response.status == (400 if is_refused else 200), response
        assert not is_refused or "it broke" in response.error
        if make_script is closes:  # an idle connection is usable until it is closed
            until(lambda: not harness.rest.open, "the gateway has closed the connection")
    assert counted(harness.gateway, backend="shop", outcome=outcome) == before + 2
    harness.rest.use(good_http)
    harness.good(model)


def _next_stream(server: h2.Server) -> int:
    return next(each.stream for each in server.frames if each.kind == h2.HEADERS)


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
@pytest.mark.parametrize("size", [4, 4 * MIB])
@pytest.mark.parametrize("code", [3, 0])
def test_early_grpc_responses_are_relayed(
    harness: Harness, model: str, size: int, code: int
) -> None:
    def script(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        while True:
            stream = _next_stream(server)
            response = h2.headers(stream) + (b"" if code else h2.data(stream, MESSAGE))
            end = trailers(("grpc-status", str(code)), ("grpc-message", "it broke"))
            server.send(response + end(stream))

    harness.rpc.use(script)
    outcome = "bad_request" if code else "ok"
    before = counted(harness.gateway, backend="depot", outcome=outcome)
    message = infer_message(model, count=size // 4)
    for _ in range(2):
        status = call(harness.channel, message)
        assert status.code is (grpc.StatusCode.INVALID_ARGUMENT if code else grpc.StatusCode.OK), (
            status
        )
    assert counted(harness.gateway, backend="depot", outcome=outcome) == before + 2
    harness.rpc.use(good_rpc)
    until(lambda: harness.send_rest(model).status == 200, "the gateway is connected again")
    harness.good(model)
