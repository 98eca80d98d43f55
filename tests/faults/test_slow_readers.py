"""Tests that clients that do not read their responses are disconnected, so that the responses do
not stay in memory. (test_h2_attacks tests HTTP/2.)"""

from __future__ import annotations

import json

from faults import frames
from faults.low_limits import LimitedGateway, head
from faults.peer import Client
from faults.watch import MIB, rises, until

_STATES = {"01": "ESTABLISHED", "04": "FIN_WAIT1", "05": "FIN_WAIT2"}
REFUSED = "infergate_refused_connections_total"


def states(client: Client, address: str) -> list[str]:
    """Return the state of the gateway's end of this connection to ``address``."""
    server_port = int(address.rpartition(":")[2])
    client_port = client.socket.getsockname()[1]
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - a file of the kernel
        rows = [row.split() for row in table.readlines()[1:]]
    ends = f"0100007F:{server_port:04X}", f"0100007F:{client_port:04X}"
    return [_STATES.get(row[3], row[3]) for row in rows if (row[1], row[2]) == ends]


def send_and_wait_for_disconnect(client: Client, address: str, request: bytes) -> None:
    client.socket.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
    client.send(request)
    until(lambda: "ESTABLISHED" not in states(client, address), "the client is disconnected")


def test_slow_http_readers_are_disconnected(gateway: LimitedGateway) -> None:
    inputs = [
        {"name": f"INPUT{i}", "datatype": "UINT8", "shape": [3 * MIB],
         "parameters": {"binary_data_size": 3 * MIB}} for i in (0, 1)
    ]  # fmt: skip
    document = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = document + bytes(6 * MIB)
    length = f"Inference-Header-Content-Length: {len(document)}"
    slow = rises(gateway, REFUSED, listener="http", reason="slow_reader")
    with slow, Client(gateway.http) as client:
        send_and_wait_for_disconnect(client, gateway.http, head(length, length=len(body)) + body)


def test_slow_raw_socket_readers_are_disconnected(gateway: LimitedGateway) -> None:
    slow = rises(gateway, REFUSED, listener="graphpipe[0]", reason="slow_reader")
    with slow, Client(gateway.raw) as client:
        send_and_wait_for_disconnect(client, gateway.raw, frames.LONG_FRAME)
