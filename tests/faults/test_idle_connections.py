"""Tests that connections without requests are closed in time and counted."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from e2e.running import ENGINE
from faults import frames, h2
from faults.low_limits import VALID_BODY, LimitedGateway, head
from faults.peer import Client
from faults.watch import releases_connections, rises

IDLE = "infergate_idle_connections_closed_total"


def test_idle_and_silent_connections_are_closed(gateway: LimitedGateway) -> None:
    with (
        rises(gateway, IDLE, 2, listener="http"),
        rises(gateway, IDLE, 2, listener="graphpipe[0]"),
        rises(gateway, IDLE, listener="admin"),
        Client(gateway.http) as after_a_request,
        Client(gateway.raw) as after_a_frame,
        Client(gateway.http) as silent,
        Client(gateway.raw) as silent_on_a_raw_socket,
        Client(gateway.admin) as silent_at_the_admin_listener,
    ):
        after_a_request.send(head() + VALID_BODY)
        assert after_a_request.answer().status == 200
        after_a_frame.send(frames.FRAME)
        assert frames.error_in(after_a_frame) == ""
        silent_clients = (silent, silent_on_a_raw_socket, silent_at_the_admin_listener)
        for client in (after_a_request, after_a_frame, *silent_clients):
            assert client.read_to_end() == b""


# ---- gRPC (grpcio does not report idle connections)


def counted_close(
    gateway: LimitedGateway, name: str, count: int = 1, **labels: str
) -> AbstractContextManager[None]:
    if ENGINE == "own":
        return rises(gateway, name, count, **labels)
    return releases_connections(gateway, "grpc")


def test_grpc_connections_without_a_preface_are_closed(gateway: LimitedGateway) -> None:
    """The gateway requires the preface and SETTINGS, with which HTTP/2 begins."""
    refused = counted_close(gateway, "infergate_refused_requests_total", 3, limit="header_time")
    with refused, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.grpc)) for _ in range(3)]
        for client, greeting in zip(clients, (b"", h2.PREFACE[:9], h2.PREFACE), strict=True):
            client.send(greeting)
        for client in clients:
            client.read_to_end()


def test_a_grpc_client_that_disappears_is_disconnected(gateway: LimitedGateway) -> None:
    """The client does not respond to a keepalive ping."""
    with counted_close(gateway, IDLE, listener="grpc"), Client(gateway.grpc) as client:
        client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        client.read_to_end()
