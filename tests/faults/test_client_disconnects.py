"""Tests clients that reset the connection, close it, or close their side at any point of a request.
Nothing of the request may remain. (test_deadlines_and_cancellation tests clients that disconnect
while they are served.)"""

from __future__ import annotations

import pytest

from faults import frames
from faults.low_limits import CHUNKED, VALID_BODY, LimitedGateway, good, good_frame, head
from faults.peer import Client
from faults.watch import releases_connections

_PREFIXES = {
    "in the request line": b"POST /v2",
    "in the header": head()[:-9],
    "before the body": head(),
    "in the body": head() + VALID_BODY[:9],
    "in a chunk": head("Transfer-Encoding: chunked", length=None) + CHUNKED[:9],
    "after the request": head() + VALID_BODY,
}


@pytest.mark.parametrize("prefix", _PREFIXES)
def test_a_reset_releases_the_connection(gateway: LimitedGateway, prefix: str) -> None:
    with releases_connections(gateway, "http"), Client(gateway.http) as client:
        client.send(_PREFIXES[prefix])
        good(gateway)
        client.reset()


@pytest.mark.parametrize("prefix", [p for p in _PREFIXES if p != "after the request"])
def test_a_half_close_counts_as_a_disconnect(gateway: LimitedGateway, prefix: str) -> None:
    """End of file means that the client has disconnected, because TCP cannot distinguish a
    half-close."""
    with releases_connections(gateway, "http"), Client(gateway.http) as client:
        client.send(_PREFIXES[prefix])
        client.socket.shutdown(1)
        assert client.read_to_end() == b""


@pytest.mark.parametrize(
    "sent", [b"", frames.FRAME[:2], frames.FRAME[:4], frames.FRAME[:9], frames.FRAME]
)
@pytest.mark.parametrize("end", ["close", "half-close", "reset"])
def test_a_disconnected_raw_socket_releases_the_connection(
    gateway: LimitedGateway, sent: bytes, end: str
) -> None:
    with releases_connections(gateway, "graphpipe[0]"), Client(gateway.raw) as client:
        client.send(sent)
        if end == "reset":
            client.reset()
        elif end == "half-close":
            client.socket.shutdown(1)
            if sent != frames.FRAME:  # after a complete frame, the response may come first
                assert client.read_to_end() == b""
    good_frame(gateway)
