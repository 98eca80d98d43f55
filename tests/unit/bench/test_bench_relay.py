import json
from typing import Any

import pytest
from bench import echo as h2
from bench import requests
from bench.relay import _GrpcClient, _JsonClient, _Server

CASE = requests.tiny("echo")
REQUEST = b"\x00" + len(CASE.message()).to_bytes(4, "big") + CASE.message()
RESPONSE = b"\x00" + len(CASE.response()).to_bytes(4, "big") + CASE.response()


class RecordingTransport:
    """A transport that keeps the written data."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.fixture
def server() -> _Server:
    server = _Server()
    server.connection_made(RecordingTransport())  # type: ignore[arg-type]
    return server


def exchange(server: _Server, client: Any, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Return the data that the server received, and the data that the client received."""
    transport = RecordingTransport()
    client.connection_made(transport)
    before, opening = len(server.transport.data), len(transport.data)  # type: ignore[attr-defined]
    for piece in pieces:
        client.data_received(piece)
    server.data_received(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.HEADER_BLOCK))
    server.data_received(h2.frame(h2.DATA, 0, 1, RESPONSE))
    received: bytes = server.transport.data[before:]  # type: ignore[attr-defined]
    return received, transport.data[opening:]


def test_a_call_is_moved_to_another_stream(server: _Server) -> None:
    call = h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 7, b"x")
    call += h2.frame(h2.DATA, h2.END_STREAM, 7, REQUEST)
    received, response = exchange(server, _GrpcClient(server), [call[:30], call[30:]])
    assert received.endswith(h2.frame(h2.DATA, h2.END_STREAM, 1, REQUEST))
    assert h2.frame(h2.DATA, 0, 7, RESPONSE) in response
    assert response.endswith(
        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 7, h2.TRAILER_BLOCK)
    )


def test_json_is_translated_to_a_grpc_message_and_back(server: _Server) -> None:
    _, body = CASE.json()
    post = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    client = _JsonClient(server, CASE.message())
    received, response = exchange(server, client, [post[:90], post[90:]])
    assert received.endswith(h2.frame(h2.DATA, h2.END_STREAM, 1, REQUEST))
    expected = json.loads(CASE.json_response().partition(b"\r\n\r\n")[2])
    assert json.loads(response.partition(b"\r\n\r\n")[2]) == expected
