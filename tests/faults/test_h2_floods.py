"""Tests floods of expensive HTTP/2 frames on either engine. Other clients do not wait, and memory
is limited.

test_h2_attacks has more floods for infergate's own engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from e2e.running import ENGINE
from faults import h2
from faults.low_limits import LimitedGateway, good_call
from faults.peer import Client
from faults.rpc import INFER
from faults.watch import releases_connections, rises, unharmed

REFUSED = "infergate_refused_connections_total"


@pytest.fixture
def gateway(limited_gateway: LimitedGateway) -> Iterator[LimitedGateway]:
    """Run the gateway while other clients send requests over gRPC."""
    with unharmed(limited_gateway, lambda: good_call(limited_gateway)):
        yield limited_gateway


_STREAM = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(INFER))
_FLOODS = {
    "rapid reset": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * i + 1, h2.request_headers(INFER))
        + h2.frame(h2.RST_STREAM, 0, 2 * i + 1, b"\0\0\0\x08")
        for i in range(3000)
    ),
    "CONTINUATION": h2.frame(h2.HEADERS, 0, 1, h2.request_headers(INFER))
    + h2.frame(h2.CONTINUATION, 0, 1, h2.fields(("a", "b" * 100))) * 20_000,
    "PING": h2.frame(h2.PING, 0, 0, bytes(8)) * 50_000,
    "SETTINGS": h2.frame(h2.SETTINGS, 0, 0) * 50_000,
    "WINDOW_UPDATE": _STREAM + h2.frame(h2.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff") * 1000,
    "empty DATA": _STREAM + h2.frame(h2.DATA, 0, 1) * 50_000,
    "streams without end": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * i + 1, h2.request_headers(INFER))
        for i in range(3000)
    ),
}


_SHORT = {"WINDOW_UPDATE", "streams without end"}
"""Floods that end before they exceed the budget of the connection."""


@pytest.mark.parametrize("flood", _FLOODS)
def test_floods_delay_no_other_client(gateway: LimitedGateway, flood: str) -> None:
    """A connection that exceeds the budget is closed and counted."""
    is_counted = ENGINE == "own" and flood not in _SHORT
    cut_off = (
        rises(gateway, REFUSED, listener="grpc")
        if is_counted
        else releases_connections(gateway, "grpc")
    )
    with cut_off, Client(gateway.grpc) as client:
        client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
        with suppress(ConnectionResetError, BrokenPipeError):  # the gateway may close first
            client.send(_FLOODS[flood])
        if is_counted:
            client.read_to_end()  # if it closed now, the gateway might not read the flood
