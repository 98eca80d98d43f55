"""Tests that connections without requests are closed in time and counted."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from e2e.running import ENGINE
from faults import frames, h2
from faults.peer import Client
from faults.tight import GOOD, Tight, head
from faults.watch import releases_connections, rises

IDLE = "infergate_idle_connections_closed_total"


def test_a_silent_connection_is_closed(gateway: Tight) -> None:
    with rises(gateway, IDLE, listener="http"), Client(gateway.http) as client:
        assert client.rest() == b""


def test_an_idle_connection_after_a_request_is_closed(gateway: Tight) -> None:
    with rises(gateway, IDLE, listener="http"), Client(gateway.http) as client:
        client.send(head() + GOOD)
        assert client.answer().status == 200
        assert client.rest() == b""


@pytest.mark.parametrize("after", [b"", frames.GOOD], ids=["nothing", "a request"])
def test_a_silent_raw_socket_is_closed(gateway: Tight, after: bytes) -> None:
    with rises(gateway, IDLE, listener="graphpipe[0]"), Client(gateway.raw) as client:
        client.send(after)
        if after:
            assert frames.error_in(client) == ""
        assert client.rest() == b""


def test_a_silent_admin_connection_is_closed(gateway: Tight) -> None:
    with rises(gateway, IDLE, listener="admin"), Client(gateway.admin) as client:
        assert client.rest() == b""


# ---- gRPC, whose library does not report them


def counted_close(gateway: Tight, name: str, **labels: str) -> AbstractContextManager[None]:
    return (
        rises(gateway, name, **labels) if ENGINE == "own" else releases_connections(gateway, "grpc")
    )


@pytest.mark.parametrize("greeting", [b"", h2.PREFACE[:9], h2.PREFACE], ids=["no", "half", "bare"])
def test_a_grpc_connection_without_a_preface_is_closed(gateway: Tight, greeting: bytes) -> None:
    """The gateway requires the preface, which is the start of HTTP/2."""
    refused = counted_close(gateway, "infergate_refused_requests_total", limit="header_time")
    with refused, Client(gateway.grpc) as client:
        client.send(greeting)
        client.rest()


def test_a_grpc_client_that_disappears_is_disconnected(gateway: Tight) -> None:
    """The client does not respond to a keepalive ping."""
    with counted_close(gateway, IDLE, listener="grpc"), Client(gateway.grpc) as client:
        client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        client.rest()
